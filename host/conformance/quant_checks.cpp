// Encodes weights whole and in parts.
#include "host/conformance/quant_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/plugin/status.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

// Memory from the host's allocator, so that guards detect writes outside of it. A copy has its own memory.
class Buffer {
 public:
  Buffer(int64_t num_bytes, std::byte junk) : bytes_(Tensor::empty(std::span(&num_bytes, 1), Dtype::u8)) {
    std::memset(data(), static_cast<int>(junk), size());
  }
  Buffer(const Buffer& other) : bytes_(other.bytes_.clone()) {}
  Buffer(Buffer&&) = default;
  Buffer& operator=(const Buffer& other) { return *this = Buffer(other); }
  Buffer& operator=(Buffer&&) = default;

  std::byte* data() const { return bytes_.data_as<std::byte>(); }
  size_t size() const { return static_cast<size_t>(bytes_.num_elements()); }
  bool operator==(const Buffer& other) const {
    return size() == other.size() && std::memcmp(data(), other.data(), size()) == 0;
  }

 private:
  Tensor bytes_;
};

// Components of a whole weight in memory.
struct Bytes {
  std::vector<Buffer> encoded, stored;  // `encoded`: in staged dtypes if there are some
};

class Weight {
 public:
  Weight(const QuantizedStorage& storage, Shape shape) : storage_(storage), shape_(shape), elements_(numel(shape)) {}

  int64_t elements() const { return elements_; }
  const Shape& shape() const { return shape_; }

  // Encodes the parts between `cuts`, the last one first if `backwards`, then finishes them. The components contain
  // `junk` before.
  Bytes encode(const std::vector<float>& values, std::vector<int64_t> cuts, bool backwards = false,
               std::byte junk = std::byte{0xa5}) const {
    Bytes bytes = room(junk);
    cuts.push_back(elements_);
    const auto encode_part = [&](size_t i) {
      const int64_t begin = i > 0 ? cuts[i - 1] : 0, end = cuts[i];
      const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
      if (count == 0) return;
      const Buffer part(static_cast<int64_t>(count * sizeof(float)), std::byte{0});
      std::memcpy(part.data(), values.data() + first, part.size());
      storage_.encode({shape_, {begin, end - begin}, addresses(bytes.encoded, begin, true)},
                      std::span(reinterpret_cast<const float*>(part.data()), count));
    };
    for (size_t i = 0; i < cuts.size(); ++i) encode_part(backwards ? cuts.size() - 1 - i : i);
    std::vector<const void*> staged;
    for (size_t i = 0; i < bytes.encoded.size(); ++i) {
      staged.push_back(storage_.is_staged(i) ? bytes.encoded[i].data() : nullptr);
      if (is_divided(i) && !storage_.is_staged(i)) bytes.stored[i] = bytes.encoded[i];
    }
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      storage_.finish({shape_, {begin, end - begin}, addresses(bytes.stored, begin, false)}, staged);
      begin = end;
    }
    return bytes;
  }

  std::vector<float> decode(Bytes& bytes, std::vector<int64_t> cuts) const {
    std::vector<float> values(static_cast<size_t>(elements_));
    cuts.push_back(elements_);
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
      if (count > 0) {
        const Buffer part(static_cast<int64_t>(count * sizeof(float)), std::byte{0xa5});
        storage_.decode({shape_, {begin, end - begin}, addresses(bytes.stored, begin, false)},
                        std::span(reinterpret_cast<float*>(part.data()), count));
        std::memcpy(values.data() + first, part.data(), part.size());
      }
      begin = end;
    }
    return values;
  }

  QuantizedPart whole(Bytes& bytes) const { return {shape_, {0, elements_}, addresses(bytes.stored, 0, false)}; }

 private:
  bool is_divided(size_t i) const { return storage_.components()[i].unit_elements != 0; }

  Bytes room(std::byte junk) const {
    Bytes bytes;
    for (size_t i = 0; i < storage_.components().size(); ++i) {
      const Component& c = storage_.components()[i];
      const int64_t units = is_divided(i) ? (elements_ + c.unit_elements - 1) / c.unit_elements : 1;
      const int64_t values = is_divided(i) ? units * c.unit_values : numel(c.whole_shape);
      const Dtype staged = storage_.is_staged(i) ? static_cast<Dtype>(storage_.raw(i).staged_dtype) : c.dtype;
      bytes.encoded.emplace_back(values * size_bytes(staged), junk);
      bytes.stored.emplace_back(values * size_bytes(c.dtype), junk);
    }
    return bytes;
  }
  // `encodes`: the addresses of what encode() writes, in staged dtypes.
  std::vector<void*> addresses(std::vector<Buffer>& bytes, int64_t begin, bool encodes) const {
    std::vector<void*> out;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const Component& c = storage_.components()[i];
      const Dtype dtype = encodes && storage_.is_staged(i) ? static_cast<Dtype>(storage_.raw(i).staged_dtype) : c.dtype;
      out.push_back(encodes && !is_divided(i) ? nullptr
                                              : bytes[i].data() + storage_.value_offset(i, begin) * size_bytes(dtype));
    }
    return out;
  }

  const QuantizedStorage& storage_;
  Shape shape_;
  int64_t elements_;
};

// One bit and a scale leave an error of 0.6; zeros have one of 1.
constexpr double kLargestError = 0.75;

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (static_cast<double>(got[i]) - expected[i]) * (static_cast<double>(got[i]) - expected[i]);
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error / norm);
}

std::string refusal_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInternal) throw;
    return error.message();
  }
  return "";
}

// Puts a NaN into each floating-point component: verify() must refuse what decode() would turn into weights that are
// not finite.
void examine_damage(const QuantizedStorage& storage, const Weight& weight, const Bytes& whole, const auto& fail) {
  for (size_t i = 0; i < whole.stored.size(); ++i) {
    const Component& component = storage.components()[i];
    if (!is_float(component.dtype)) continue;
    Bytes damaged = whole;
    const Buffer& bytes = damaged.stored[i];
    const int64_t count = static_cast<int64_t>(bytes.size()) / size_bytes(component.dtype);
    const Tensor values = Tensor::borrow(bytes.data(), std::span(&count, 1), component.dtype);
    values.narrow(0, count / 2, 1).fill(std::numeric_limits<double>::quiet_NaN());
    if (!refusal_of([&] { storage.verify(weight.whole(damaged)); }).empty()) continue;
    const std::vector<float> decoded = weight.decode(damaged, {});
    const auto bad = std::find_if(decoded.begin(), decoded.end(), [](float v) { return !std::isfinite(v); });
    if (bad == decoded.end()) continue;
    fail(fmt::format("verify() accepts NaN as value {} of component {} '{}', by which element {} is decoded as {}",
                     count / 2, i, component.suffix, bad - decoded.begin(), *bad));
  }
}

void examine(const QuantPlugin& plugin, const Shape& shape, std::vector<std::string>& failures) {
  const auto fail = [&](const std::string& what) {
    failures.push_back(fmt::format("a weight {}: {}", text(shape), what));
  };
  const std::vector<int64_t> sizes(shape.begin(), shape.end());
  chassis_quant_parameter_t parameter{};
  parameter.struct_size = sizeof parameter;
  parameter.role = CHASSIS_ROLE_WEIGHT;
  parameter.name = str_of("model.layers.0.mlp.up_proj.weight");
  parameter.module = str_of("model.layers.0.mlp.up_proj");
  const bool is_of_experts = shape.ndim() == 3;
  parameter.op = str_of(is_of_experts ? "grouped_linear" : "linear");
  parameter.sizes = sizes.data();
  parameter.num_dims = sizes.size();
  parameter.num_readers = 1;
  const auto storage = plugin.storage(parameter), again = plugin.storage(parameter);
  if (!storage && is_of_experts) return;
  if (!storage) return fail("parameter() does not store the weight of a linear");
  if (!again || again->scheme() != storage->scheme() || again->components() != storage->components())
    return fail("parameter() describes it in two ways");

  const Weight weight(*storage, shape);
  std::mt19937 random(11);
  std::vector<float> values(static_cast<size_t>(weight.elements()));
  for (float& value : values) value = std::normal_distribution<float>(0.0f, 0.02f)(random);
  Bytes whole = weight.encode(values, {});
  if (weight.encode(values, {}).stored != whole.stored) fail("encoded twice, its bytes differ");
  if (weight.encode(values, {}, false, std::byte{0x5a}).stored != whole.stored)
    fail("its bytes depend on what its components hold before; each is to be written wholly");
  std::vector<float> larger = values;
  for (float& value : larger) value *= 16;
  weight.encode(larger, {});
  if (weight.encode(values, {}).stored != whole.stored) fail("encoded after another weight, its bytes differ");
  const int64_t block = storage->block_elements();
  std::vector<int64_t> every;
  for (int64_t cut = block; cut < weight.elements(); cut += block) {
    every.push_back(cut);
    if (weight.encode(values, {cut}).stored == whole.stored) continue;
    fail(fmt::format("cut at element {}, its components have other bytes", cut));
    break;
  }
  if (weight.encode(values, every).stored != whole.stored)
    fail("encoded block by block, its components have other bytes");
  if (weight.encode(values, every, true).stored != whole.stored)
    fail("encoded block by block, the last one first, its components have other bytes");

  const std::vector<float> decoded = weight.decode(whole, {});
  if (weight.decode(whole, every) != decoded) fail("decoded block by block, its values differ");
  const auto bad = std::find_if(decoded.begin(), decoded.end(), [](float v) { return !std::isfinite(v); });
  if (bad != decoded.end())
    fail(fmt::format("element {} is decoded as {}", bad - decoded.begin(), *bad));
  else if (const double error = relative_error(decoded, values); error > kLargestError)
    fail(fmt::format("decoded values are {:.2f} of the norm of the encoded ones away from these, at most {} expected",
                     error, kLargestError));
  if (const std::string refused = refusal_of([&] { storage->verify(weight.whole(whole)); }); !refused.empty())
    fail("verify() refuses what encode() made: " + refused);
  examine_damage(*storage, weight, whole, fail);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> wrong = values;
    wrong[wrong.size() / 2] = value;
    if (refusal_of([&] { weight.encode(wrong, {}); }).empty())
      fail(fmt::format("encode() accepts the value {}", value));
  }
  if (storage->state_suffix().empty()) return;
  const std::string state = storage->write_state(weight.whole(whole), 0, Dtype::bf16);
  if (const std::string refused = refusal_of([&] { storage->read_state(weight.whole(whole), 0, state); });
      !refused.empty())
    fail("read_state() refuses what write_state() wrote: " + refused);
  Shape turned = shape;
  turned[shape.ndim() - 2] = shape[shape.ndim() - 1] + 1;
  turned[shape.ndim() - 1] = shape[shape.ndim() - 2];
  QuantizedPart other = weight.whole(whole);
  if (refusal_of([&] { storage->read_state({turned, other.elements, other.components}, 0, state); }).empty())
    fail("read_state() accepts the text of " + text(shape) + " for " + text(turned));
}

}  // namespace

std::vector<std::string> quant_failures(const QuantPlugin& plugin, const QuantPlugin& another) {
  std::vector<std::string> failures;
  if (plugin.configure("")) failures.push_back("configure() finds components without a configuration");
  for (const Shape& shape : {Shape{64, 128}, Shape{33, 57}, Shape{3, 1}, Shape{40, 448}, Shape{3, 24, 128}})
    examine(plugin, shape, failures);
  const std::string text = plugin.config();
  if (!parse_json(text, "quantization_config", ExitCode::kPlugin).is_object()) {
    failures.push_back("config() is not a JSON object");
    return failures;
  }
  bool is_stored = false;
  const std::string refused = refusal_of([&] { is_stored = another.configure(text); });
  if (!refused.empty())
    failures.push_back("configure() refuses what config() wrote: " + refused);
  else if (!is_stored)
    failures.push_back("configure() does not say that the files of a model with what config() wrote hold components");
  return failures;
}

}  // namespace chassis
