// 4-bit weights as bitsandbytes stores them (Dettmers et al. 2023, "QLoRA"): nf4 and fp4, with scales in fp32 or, with
// double quantization, in 8 bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "chassis/plugin.hpp"
#include "chassis/quant.hpp"
#include "loops.hpp"
#include "nested.hpp"
#include "product.hpp"
#include "quant_state.hpp"
#include "settings.hpp"
#include "weight.hpp"

namespace {

using namespace chassis;
using namespace bnb4;

class Bnb4 final : public Quant {
 public:
  static constexpr std::string_view kDoc = "4-bit weights in bitsandbytes' files: nf4, fp4, double quantization";
  static constexpr std::string_view kPatterns[] = {"linear", "grouped_linear"};
  static const Options& options() { return bnb4::options(); }

  explicit Bnb4(const Host& host) : Quant(host), settings_(settings_from_options(host)) {}

  bool configure(std::string_view config_json) override {
    if (config_json.empty()) return false;
    const FileSettings file = parse_quantization_config(config_json);
    for (const std::string& key : file.unknown_keys)
      host().count("unknown keys of quantization_config", "quantization_config of the model's config.json: '", key,
                   "' is not known here and has no effect");
    const auto refuse_if = [&](std::string_view option, bool other, const auto& ours, const auto& theirs) {
      if (!other) return;
      if (option_origin(host(), option) != "default")
        fail_invalid(place_of(host(), option), ours, ", but the model's config.json says ", theirs,
                     "; remove one of the two keys");
    };
    const auto yes = [](bool value) { return value ? "true" : "false"; };
    refuse_if("type", settings_.code != file.code, code_name(settings_.code), code_name(file.code));
    refuse_if("double_quant", settings_.is_nested != file.is_nested, yes(settings_.is_nested), yes(file.is_nested));
    const bool has_experts = file.has_experts.value_or(false);
    refuse_if("experts", file.has_experts && settings_.has_experts != has_experts, yes(settings_.has_experts),
              yes(has_experts));
    if (file.has_experts || option_origin(host(), "experts") == "default") settings_.has_experts = has_experts;
    if (file.block_size) {
      refuse_if("block_size", settings_.block_size != *file.block_size, settings_.block_size, *file.block_size);
      settings_.block_size = *file.block_size;
    }
    if (option_differs(host(), options(), "skip"))
      fail_invalid(place_of(host(), "skip"), "cannot be set for a model that is already quantized");
    settings_.code = file.code;
    settings_.is_nested = file.is_nested;
    settings_.skip = file.skip;
    is_stored_ = true;
    return true;
  }

  const QuantStorage* storage(const QuantParameter& p) override {
    const std::string last(p.module.substr(p.module.rfind('.') + 1));
    if (p.role == CHASSIS_ROLE_ROUTER) routers_.insert(last);
    const bool is_expert = p.is_expert_weight();
    if ((!p.is_linear_weight() && !is_expert) || p.is_added) return nullptr;
    linears_.insert(last);
    bool is_named = false;
    for (const std::string& name : settings_.skip)
      if (is_skipped({name}, p.module)) {
        used_.insert(name);
        is_named = true;
      }
    if (is_named || p.role == CHASSIS_ROLE_HEAD || p.num_tied > 0 || p.num_readers != 1) return nullptr;
    if (is_expert && !settings_.has_experts) return nullptr;
    int64_t elements = 1;
    for (size_t i = is_expert ? 1 : 0; i < p.sizes.size(); ++i) elements *= p.sizes[i];
    if (is_expert && elements % settings_.block_size != 0) {
      host().count("experts that are not quantized", p.name, " and its like have ", elements,
                   " elements, which are no whole blocks of ", settings_.block_size, ": they stay as they are");
      return nullptr;
    }
    ++num_stored_;
    if (is_expert) ++num_experts_;
    auto& known = storages_[{settings_.is_nested ? elements : 0, is_expert}];
    if (!known)
      known = std::make_unique<QuantStorage>(scheme(), state_suffix(), components(elements),
                                             CHASSIS_STORAGE_DIVISIBLE | (is_expert ? CHASSIS_STORAGE_SLICES : 0u));
    return known.get();
  }

  void finish_model() override {
    std::string names;
    for (const std::string& name : linears_) names += (names.empty() ? "" : ", ") + name;
    if (!is_stored_)
      for (const std::string& name : settings_.skip)
        if (!used_.contains(name))
          fail_invalid(place_of(host(), "skip"), "'", name, "' matches no linear of the model; it has ", names);
    if (num_stored_ == 0) fail_invalid("[quant]: no linear is left to quantize; the model has ", names);
  }

  void encode(const QuantPart& part) const override {
    auto* const codes = part.component<uint8_t>(kCodes);
    auto* const absmax = part.component<float>(kAbsmax);
    const int64_t n = part.count(), block = settings_.block_size;
    check_part(part);
    int64_t bad = -1;
    switch (part.value_dtype()) {
      case CHASSIS_DTYPE_F32:
        bad = loops().quantize_f32(settings_.code, static_cast<const float*>(part.values()), n, block, codes, absmax);
        break;
      case CHASSIS_DTYPE_BF16:
        bad =
            loops().quantize_bf16(settings_.code, static_cast<const uint16_t*>(part.values()), n, block, codes, absmax);
        break;
      case CHASSIS_DTYPE_F16:
        bad =
            loops().quantize_f16(settings_.code, static_cast<const uint16_t*>(part.values()), n, block, codes, absmax);
        break;
      default:
        throw Failure(CHASSIS_UNIMPLEMENTED, "values of ", dtype_name(part.value_dtype()), " are not quantized");
    }
    if (bad >= 0)
      fail_invalid("a value among elements ", part.begin() + bad * block, " to ",
                   std::min(part.begin() + n, part.begin() + (bad + 1) * block) - 1,
                   " is NaN or infinite and cannot be quantized");
  }

  void finish(const QuantPart& part) const override {
    std::copy(table().begin(), table().end(), part.component<float>(kQuantMap));
    if (!settings_.is_nested) return;
    const auto* const absmax = part.staged<float>(kAbsmax);
    const int64_t num_blocks = blocks(part.num_elements());
    const float offset = mean(absmax, num_blocks);
    std::copy(kDynamicMap.begin(), kDynamicMap.end(), part.component<float>(kNestedMap));
    *part.component<float>(kNestedOffset) = offset;
    std::vector<uint8_t> codes(static_cast<size_t>(num_blocks));
    quantize_absmax(absmax, num_blocks, kDynamicMap.data(), offset, codes.data(), part.component<float>(kNestedAbsmax));
    const auto first = static_cast<std::ptrdiff_t>(part.begin() / settings_.block_size);
    std::copy_n(codes.begin() + first, blocks(part.count()), part.component<uint8_t>(kAbsmax));
  }

  void decode(const QuantPart& part) const override {
    check_part(part);
    std::vector<float> restored;
    const float* const absmax = absmax_of(part, restored);
    const auto* const map = part.component<float>(kQuantMap);
    const auto* const codes = part.component<uint8_t>(kCodes);
    const int64_t n = part.count(), block = settings_.block_size;
    switch (part.value_dtype()) {
      case CHASSIS_DTYPE_F32:
        return loops().dequantize_f32(map, codes, absmax, n, block, static_cast<float*>(part.values()));
      case CHASSIS_DTYPE_BF16:
        return loops().dequantize_bf16(map, codes, absmax, n, block, static_cast<uint16_t*>(part.values()));
      case CHASSIS_DTYPE_F16:
        return loops().dequantize_f16(map, codes, absmax, n, block, static_cast<uint16_t*>(part.values()));
      default:
        throw Failure(CHASSIS_UNIMPLEMENTED, "values of ", dtype_name(part.value_dtype()), " are not restored");
    }
  }

  void verify(const QuantPart& part) const override {
    const auto* const quant_map = part.component<float>(kQuantMap);
    for (size_t i = 0; i < 16; ++i)
      if (!(std::abs(quant_map[i] - table()[i]) < 1e-6f))
        throw Failure(CHASSIS_DATA_LOSS, ".quant_map[", i, "] is ", quant_map[i], ", expected ", table()[i], " of ",
                      code_name(settings_.code));
    if (settings_.is_nested) {
      const auto* const map = part.component<float>(kNestedMap);
      for (int64_t i = 0; i < 256; ++i)
        if (!(std::abs(map[i] - kDynamicMap[static_cast<size_t>(i)]) < 1e-6f))
          throw Failure(CHASSIS_DATA_LOSS, ".nested_quant_map[", i, "] is ", map[i], ", expected ",
                        kDynamicMap[static_cast<size_t>(i)], " as bitsandbytes has it");
      verify_scales(".nested_absmax", part.component<float>(kNestedAbsmax), 0, nested_blocks(part.num_elements()));
      verify_scales(".nested_offset", part.component<float>(kNestedOffset), 0, 1);
      return;
    }
    verify_scales(".absmax", part.component<float>(kAbsmax), part.begin() / settings_.block_size, blocks(part.count()));
  }

  std::string write_state(const QuantPart& part) const override {
    QuantState state;
    state.code = settings_.code;
    state.block_size = settings_.block_size;
    state.dtype = part.value_dtype() == CHASSIS_DTYPE_F16   ? "float16"
                  : part.value_dtype() == CHASSIS_DTYPE_F32 ? "float32"
                                                            : "bfloat16";
    state.shape.assign(part.sizes().begin(), part.sizes().end());
    state.is_nested = settings_.is_nested;
    if (state.is_nested) state.nested_offset = *part.component<float>(kNestedOffset);
    return quant_state_text(state);
  }

  void read_state(const QuantPart& part, std::string_view text) const override {
    const QuantState state = parse_quant_state(text);
    const auto refuse_if = [](bool other, std::string_view key, const auto& found, const auto& expected) {
      if (other) throw Failure(CHASSIS_DATA_LOSS, "quant_state: ", key, " is ", found, ", expected ", expected);
    };
    refuse_if(state.code != settings_.code, "quant_type", code_name(state.code), code_name(settings_.code));
    refuse_if(state.block_size != settings_.block_size, "blocksize", state.block_size,
              std::to_string(settings_.block_size) + ", as quant.block_size says");
    refuse_if(!std::equal(state.shape.begin(), state.shape.end(), part.sizes().begin(), part.sizes().end()), "shape",
              to_json(state.shape), to_json(std::vector<int64_t>(part.sizes().begin(), part.sizes().end())));
    refuse_if(state.is_nested != settings_.is_nested, "nested_offset", state.is_nested ? "there" : "missing",
              settings_.is_nested ? "it, since scales are quantized too" : "none, since scales are in fp32");
    if (state.is_nested) *part.component<float>(kNestedOffset) = state.nested_offset;
  }

  // Rationale: where transformers quantizes experts, it also does so with routers that are not listed.
  std::string config() const override {
    Settings written = settings_;
    written.has_experts = num_experts_ > 0;
    if (written.has_experts)
      for (const std::string& name : routers_)
        if (std::ranges::find(written.skip, name) == written.skip.end()) written.skip.push_back(name);
    return quantization_config_text(written);
  }

  double claim(const NodeView& node) override { return claim_product(host(), node, scheme()); }
  void infer(const NodeView& node, Infer& out) override { infer_product(host(), node, settings_.block_size, out); }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return make_product(host(), node, settings_.block_size);
  }

 private:
  const std::array<float, 16>& table() const { return values_of(settings_.code); }
  std::string scheme() const { return "bnb4/" + std::string(code_name(settings_.code)); }
  std::string state_suffix() const { return ".quant_state.bitsandbytes__" + std::string(code_name(settings_.code)); }
  int64_t blocks(int64_t elements) const { return (elements + settings_.block_size - 1) / settings_.block_size; }
  int64_t nested_blocks(int64_t elements) const { return (blocks(elements) + kNestedBlock - 1) / kNestedBlock; }

  std::vector<QuantComponent> components(int64_t elements) const {
    const int64_t block = settings_.block_size;
    std::vector<QuantComponent> out = {{"", CHASSIS_DTYPE_U8, 2, 1, 0, 0, CHASSIS_COMPONENT_COLUMN},
                                       {".absmax", CHASSIS_DTYPE_F32, block, 1},
                                       {".quant_map", CHASSIS_DTYPE_F32, 0, 0, 16}};
    if (!settings_.is_nested) return out;
    out[kAbsmax].dtype = CHASSIS_DTYPE_U8;
    out[kAbsmax].staged_dtype = CHASSIS_DTYPE_F32;
    out.push_back({".nested_absmax", CHASSIS_DTYPE_F32, 0, 0, nested_blocks(elements)});
    out.push_back({".nested_quant_map", CHASSIS_DTYPE_F32, 0, 0, 256});
    out.push_back({".nested_offset", CHASSIS_DTYPE_F32, 0, 0, 1, 0, CHASSIS_COMPONENT_NOT_IN_FILES});
    return out;
  }

  void check_part(const QuantPart& part) const {
    if (part.begin() % settings_.block_size != 0)
      throw Failure(CHASSIS_INTERNAL, "elements from ", part.begin(), " on do not begin at a block of ",
                    settings_.block_size);
  }

  const float* absmax_of(const QuantPart& part, std::vector<float>& restored) const {
    if (!settings_.is_nested) return part.component<float>(kAbsmax);
    restored.resize(static_cast<size_t>(blocks(part.count())));
    restore_absmax(part.component<uint8_t>(kAbsmax), part.component<float>(kNestedAbsmax),
                   part.component<float>(kNestedMap), *part.component<float>(kNestedOffset),
                   part.begin() / settings_.block_size, blocks(part.count()), restored.data());
    return restored.data();
  }

  // `first`: the index of the first one in the whole component.
  static void verify_scales(std::string_view name, const float* values, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (!std::isfinite(values[i]) || values[i] < 0.0f)
        throw Failure(CHASSIS_DATA_LOSS, name, "[", first + i, "] is ", values[i],
                      ", expected a finite number that is not negative");
  }

  Settings settings_;
  bool is_stored_ = false;
  int64_t num_stored_ = 0, num_experts_ = 0;
  // By elements, if nested companions depend on them, and for experts.
  std::map<std::pair<int64_t, bool>, std::unique_ptr<QuantStorage>> storages_;
  std::set<std::string> linears_, routers_, used_;
};

}  // namespace

#if defined(CHASSIS_BNB4_CUDA)
#define BNB4_OPERATORS                                                                                              \
  "requires=chassis.dispatch/1\n"                                                                                   \
  "op=aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)\n"                                    \
  "op=aten::addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> " \
  "Tensor(a!)\n"                                                                                                    \
  "op=aten::addmm_(Tensor(a!) self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor(a!)\n"    \
  "op=aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)\n"                                                     \
  "op=aten::t(Tensor(a) self) -> Tensor(a)\n"                                                                       \
  "op=aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor\n"   \
  "op=aten::narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)\n"                            \
  "op=aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)\n"                                       \
  "op=aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)\n"                            \
  "op=aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"                          \
  "op=aten::zero_(Tensor(a!) self) -> Tensor(a!)\n"
#else
#define BNB4_OPERATORS ""
#endif

CHASSIS_PLUGIN(BNB4_OPERATORS
               "requires=chassis.options/1\n"
               "requires=chassis.gemm/1\n"
               "requires=chassis.tensor/1\n"
               "requires=chassis.task/1\n"
               "swappable=1\n"
               "license=Apache-2.0\n",
               Bnb4)
