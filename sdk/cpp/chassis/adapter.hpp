// The base of adapters: says which parameters of a model are trained, and adds parameters and ops to it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/builder.hpp"
#include "chassis/kind/adapter.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// A parameter of the model.
struct AdapterParameter {
  std::string_view name;    // "model.layers.3.self_attn.q_proj.bias"
  std::string_view module;  // of the op that reads it: "model.layers.3.self_attn.q_proj"
  std::string_view op;      // "linear"
  uint32_t role = 0;        // CHASSIS_ROLE_…
  std::vector<int64_t> sizes;
  int64_t layer = -1;                  // index of its block; -1: the only one of its chain
  std::vector<std::string_view> tied;  // names of slots that share it
};

// An op of the model that may be extended.
struct AdapterOp {
  std::string_view op, name, block, chain;
  std::string_view module;  // "model.layers.3.self_attn.q_proj"
  uint32_t role = 0;        // of its first parameter
  int64_t layer = -1;
  uint32_t num_joined = 1;  // ops whose weights are one tensor in files; they share the module
  Value input, output;
  bool has_bias = false;
  std::vector<Dims>
      weight_axes;  // of its first parameter: [out, in] of a linear, [experts, out, in] of a grouped_linear
  std::vector<int64_t> weight_sizes;
  std::string_view parameter;  // its first, in the program: "model.layers.3.mlp.experts.up_proj.weight"
  Value experts;               // of a grouped_linear: [B, T, k] i32

  bool is_linear() const noexcept { return op == "linear" && weight_sizes.size() == 2; }
  bool is_grouped_linear() const noexcept { return op == "grouped_linear" && weight_sizes.size() == 3; }
  // The logits of experts, or the gate of a shared one, in fp32.
  bool is_router() const noexcept { return op == "score" && role == CHASSIS_ROLE_ROUTER && weight_sizes.size() == 2; }
  int64_t out_features() const { return weight_sizes.at(weight_sizes.size() - 2); }
  int64_t in_features() const { return weight_sizes.at(weight_sizes.size() - 1); }
};

// Records the additions to one op; slot names are relative to the op's module. Ops may read values that were recorded
// for earlier ops of the same block.
class AdapterBuilder : public Builder {
 public:
  AdapterBuilder(const Host& host, const chassis_adapter_builder_t& raw)
      : Builder(host, *raw.record), host_(host), raw_(raw) {}

  // The op reads `value` instead of its first input.
  void replace_input(const Value& value) { host_.check(raw_.replace_input(&raw_, value.id)); }
  // All readers of the op's output read `value` instead, except ops recorded for this op.
  void replace_output(const Value& value) { host_.check(raw_.replace_output(&raw_, value.id)); }

 private:
  const Host& host_;
  const chassis_adapter_builder_t& raw_;
};

// A parameter that the adapter added; or a tensor in files, without values.
struct AdapterTensor {
  std::string_view name;  // "lora_A.weight"; in files "model.layers.3.mlp.experts.lora_A.weight"
  std::vector<int64_t> sizes;
  std::span<const float> values;
};

// A box of a parameter of an extended op; values are changed in place.
struct AdapterMerge {
  std::string_view module, parameter;
  int64_t row_begin = 0, num_rows = 0, column_begin = 0, num_columns = 0;
  std::span<float> values;  // num_rows × num_columns
  std::vector<AdapterTensor> tensors;
  int64_t expert = 0;     // whose rows and columns these are, in a weight [experts, out, in]
  std::string_view name;  // the parameter's, as AdapterOp::parameter

  const AdapterTensor& tensor(std::string_view name) const {
    for (const AdapterTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw Failure(CHASSIS_NOT_FOUND, "module '", module, "' has no parameter '", name, "'");
  }
};

// A part of a parameter that the adapter added, and its place in a tensor of files.
struct AdapterPart {
  std::string parameter;            // full name
  std::vector<int64_t> begin, end;  // in the parameter
  std::string tensor;
  std::vector<int64_t> sizes, at;  // of the whole tensor; where the part begins in it
  std::vector<uint32_t> dims;  // dim k of the tensor is dim dims[k] of the parameter; along others the part has size 1
};

// Receives the places of parameters in files.
class AdapterFiles {
 public:
  AdapterFiles(const Host& host, const chassis_adapter_files_t& raw) : host_(host), raw_(raw) {
    for (uint32_t i = 0; i < raw.num_tensors; ++i) {
      const auto t = read_sized(raw.tensors[i]);
      tensors_.push_back({text_of(t.name), {t.sizes, t.sizes + t.num_dims}, {}});
    }
  }

  // The tensors of files that are read; none if files are written.
  const std::vector<AdapterTensor>& tensors() const { return tensors_; }
  std::string_view config_json() const { return text_of(raw_.config_json); }  // the model's

  // The parts of a parameter must cover each of its elements once.
  void place(const AdapterPart& p) {
    const chassis_adapter_part_t raw = {sizeof(chassis_adapter_part_t),
                                        static_cast<uint32_t>(p.begin.size()),
                                        str(p.parameter),
                                        p.begin.data(),
                                        p.end.data(),
                                        str(p.tensor),
                                        p.sizes.data(),
                                        p.at.data(),
                                        p.dims.data(),
                                        static_cast<uint32_t>(p.dims.size()),
                                        0};
    host_.check(raw_.part(&raw_, &raw));
  }

 private:
  const Host& host_;
  const chassis_adapter_files_t& raw_;
  std::vector<AdapterTensor> tensors_;
};

// All [control] but merge.
class Adapter : public Member {
 public:
  static constexpr std::string_view kKind = "adapter";
  using Member::Member;

  // Gets the text of adapter_config.json in [adapter] path; empty without one. Called once, before all others.
  virtual void configure(std::string_view config_json) = 0;
  // True if a parameter of the model is trained.
  virtual bool trains(const AdapterParameter&) { return false; }
  // Records the additions to this op, if any.
  virtual void extend(const AdapterOp& op, AdapterBuilder& b) = 0;
  // Called after the whole model was offered; refuses options that matched nothing.
  virtual void finish() {}
  // Returns adapter_config.json: a JSON object with "peft_type", which is kId in upper or lower case, and
  // "base_model_name_or_path", which is base_path. From these the program finds the plugin and the base model for a
  // directory.
  virtual std::string config(std::string_view base_path, std::string_view base_config_json) const = 0;
  // [any] Applies the adapter to a part of a parameter. Adapters that cannot be merged do not override it.
  virtual void merge(const AdapterMerge&) const {}
  // Declares how files hold the added parameters; one that is not declared is a tensor of its own. Refuses files in
  // which its place is ambiguous.
  virtual void files(AdapterFiles&) const {}

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    constexpr bool kMerges = kOverridden<&Adapter::merge, &T::merge>;
    constexpr bool kHasFiles = kOverridden<&Adapter::files, &T::files>;
    static constexpr chassis_adapter_t kTable = {sizeof(chassis_adapter_t),
                                                 0,
                                                 &configure_entry,
                                                 &parameter_entry,
                                                 &extend_entry,
                                                 &finish_entry,
                                                 &config_entry,
                                                 kMerges ? &merge_entry : nullptr,
                                                 kHasFiles ? &files_entry : nullptr};
    return id == CHASSIS_ADAPTER_ID ? &kTable : nullptr;
  }

 private:
  template <typename Body>
  static chassis_status_t* call(chassis_instance* self, Body&& body) noexcept {
    Adapter& adapter = member_of<Adapter>(self);
    return guard(adapter.host().table(), [&] { body(adapter); });
  }
  static Dims dims_of(const chassis_dim_t* ids, uint64_t count) {
    Dims dims;
    for (uint64_t i = 0; i < count; ++i) dims.push_back({ids[i]});
    return dims;
  }
  static chassis_status_t* configure_entry(chassis_instance* self, chassis_str_t json) noexcept {
    return call(self, [&](Adapter& adapter) { adapter.configure(text_of(json)); });
  }
  static chassis_status_t* parameter_entry(chassis_instance* self, const chassis_adapter_parameter_t* raw,
                                           uint32_t* trained) noexcept {
    return call(self, [&](Adapter& adapter) {
      const auto p = read_sized(raw);
      AdapterParameter parameter{
          text_of(p.name), text_of(p.module), text_of(p.op), p.role, {p.sizes, p.sizes + p.num_dims}, p.layer, {}};
      for (uint64_t i = 0; i < p.num_tied; ++i) parameter.tied.push_back(text_of(p.tied[i]));
      *trained = adapter.trains(parameter) ? 1 : 0;
    });
  }
  static chassis_status_t* extend_entry(chassis_instance* self, const chassis_adapter_op_t* raw,
                                        const chassis_adapter_builder_t* builder) noexcept {
    return call(self, [&](Adapter& adapter) {
      const auto o = read_sized(raw);
      AdapterOp op;
      op.op = text_of(o.op), op.name = text_of(o.name), op.block = text_of(o.block), op.chain = text_of(o.chain);
      op.module = text_of(o.module), op.num_joined = o.num_joined;
      op.role = o.role, op.layer = o.layer, op.has_bias = o.has_bias != 0;
      op.input = {o.input, dims_of(o.input_dims, o.num_input_dims)};
      op.output = {o.output, dims_of(o.output_dims, o.num_output_dims)};
      for (uint32_t i = 0; i < o.num_weight_axes; ++i) {
        op.weight_axes.push_back(dims_of(o.weight_axes[i].dims, o.weight_axes[i].num_dims));
        op.weight_sizes.push_back(o.weight_axes[i].size);
      }
      op.parameter = text_of(o.parameter);
      if (o.experts != CHASSIS_ABSENT) op.experts = {o.experts, dims_of(o.experts_dims, o.num_experts_dims)};
      AdapterBuilder b(adapter.host(), *builder);
      adapter.extend(op, b);
    });
  }
  static chassis_status_t* finish_entry(chassis_instance* self) noexcept {
    return call(self, [](Adapter& adapter) { adapter.finish(); });
  }
  static chassis_status_t* config_entry(chassis_instance* self, const chassis_adapter_base_t* raw,
                                        const chassis_text_sink_t* out) noexcept {
    return call(self, [&](Adapter& adapter) {
      const auto base = read_sized(raw);
      out->text(out, str(adapter.config(text_of(base.path), text_of(base.config_json))));
    });
  }
  static chassis_status_t* merge_entry(chassis_instance* self, const chassis_adapter_merge_t* raw) noexcept {
    return call(self, [&](Adapter& adapter) {
      const auto m = read_sized(raw);
      AdapterMerge merge{text_of(m.module),
                         text_of(m.parameter),
                         m.row_begin,
                         m.num_rows,
                         m.column_begin,
                         m.num_columns,
                         {m.values, static_cast<size_t>(m.num_rows * m.num_columns)},
                         {},
                         m.expert,
                         text_of(m.name)};
      for (uint32_t i = 0; i < m.num_tensors; ++i) {
        const auto t = read_sized(m.tensors[i]);
        AdapterTensor tensor{text_of(t.name), {t.sizes, t.sizes + t.num_dims}, {}};
        size_t count = 1;
        for (int64_t size : tensor.sizes) count *= static_cast<size_t>(size);
        tensor.values = {t.values, count};
        merge.tensors.push_back(std::move(tensor));
      }
      adapter.merge(merge);
    });
  }
  static chassis_status_t* files_entry(chassis_instance* self, const chassis_adapter_files_t* raw) noexcept {
    return call(self, [&](Adapter& adapter) {
      const auto all = read_sized(raw);
      AdapterFiles files(adapter.host(), all);
      adapter.files(files);
    });
  }
};

CHASSIS_SDK_END
