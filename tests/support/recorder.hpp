// Records small programs in tests: the builder table with exceptions instead of statuses.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chassis/tensor.h"
#include "host/base/error.hpp"
#include "host/graph/recording.hpp"
#include "host/plugin/status.hpp"

namespace chassis::test {

struct SlotSpec {
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  uint32_t init = CHASSIS_INIT_NORMAL;
  double init_std = 0.5;
  std::string tied_to = {};
};

class Recorder {
 public:
  explicit Recorder(const chassis_builder_t* b) : b_(b) {}

  DimId dim(const std::string& name, int64_t size) {
    DimId out = 0;
    check(b_->dim(b_, str_of(name), size, &out));
    return out;
  }
  DimId bounded_dim(const std::string& name, int64_t maximum) {
    DimId out = 0;
    check(b_->bounded_dim(b_, str_of(name), maximum, &out));
    return out;
  }
  uint32_t begin_block(const std::string& name) {
    uint32_t out = 0;
    check(b_->begin_block(b_, str_of(name), &out));
    return out;
  }
  void end_block() { check(b_->end_block(b_)); }
  uint32_t block(const std::string& name, const std::function<void()>& body) {
    const uint32_t id = begin_block(name);
    body();
    end_block();
    return id;
  }
  ValueId input(const std::string& name, const std::vector<DimId>& dims) {
    ValueId out = 0;
    check(b_->input(b_, str_of(name), dims.data(), static_cast<uint32_t>(dims.size()), &out));
    return out;
  }
  ValueId field(const std::string& name, uint32_t dtype = CHASSIS_DTYPE_I32,
                const std::vector<DimId>& dims = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME}) {
    ValueId out = 0;
    check(b_->field(b_, str_of(name), dtype, dims.data(), static_cast<uint32_t>(dims.size()), &out));
    return out;
  }
  SlotId slot(const std::string& name, const std::vector<std::vector<DimId>>& axes, const SlotSpec& spec = {}) {
    std::vector<chassis_axis_t> raw;
    for (const auto& axis : axes) raw.push_back({axis.data(), axis.size()});
    chassis_slot_desc_t desc{};
    desc.struct_size = sizeof(desc);
    desc.num_axes = static_cast<uint32_t>(raw.size());
    desc.name = str_of(name);
    desc.axes = raw.data();
    desc.role = spec.role;
    desc.init = spec.init;
    desc.init_std = spec.init_std;
    desc.tied_to = str_of(spec.tied_to);
    SlotId out = 0;
    check(b_->slot(b_, &desc, &out));
    return out;
  }
  ValueId op(const std::string& id, const std::string& name, const std::vector<ValueId>& inputs,
             const std::vector<SlotId>& params = {}, const OpAttrs& attrs = {},
             const std::vector<DimId>& out_dims = {}) {
    std::vector<chassis_attr_t> raw;
    for (const auto& [key, value] : attrs) raw.push_back(attr(key, value));
    chassis_op_desc_t desc{};
    desc.struct_size = sizeof(desc);
    desc.id = str_of(id);
    desc.name = str_of(name);
    desc.inputs = inputs.data();
    desc.num_inputs = static_cast<uint32_t>(inputs.size());
    desc.params = params.data();
    desc.num_params = static_cast<uint32_t>(params.size());
    desc.attrs = raw.data();
    desc.num_attrs = static_cast<uint32_t>(raw.size());
    desc.output_dims = out_dims.data();
    desc.num_output_dims = static_cast<uint32_t>(out_dims.size());
    ValueId out = 0;
    check(b_->op(b_, &desc, &out));
    return out;
  }
  // A plugin's own op; `mixed` not given: it declares nothing.
  ValueId own_op(const std::string& id, const std::vector<ValueId>& inputs, const std::vector<DimId>& dims,
                 const std::optional<std::vector<DimId>>& mixed, const std::vector<SlotId>& params = {},
                 uint32_t dtype = 0) {
    chassis_op_desc_t desc{};
    desc.struct_size = sizeof(desc);
    desc.id = desc.name = str_of(id);
    desc.inputs = inputs.data();
    desc.num_inputs = static_cast<uint32_t>(inputs.size());
    desc.params = params.data();
    desc.num_params = static_cast<uint32_t>(params.size());
    desc.output_dims = dims.data();
    desc.num_output_dims = static_cast<uint32_t>(dims.size());
    if (mixed) {
      desc.mixed_dims = mixed->data();
      desc.num_mixed_dims = static_cast<uint32_t>(mixed->size());
      desc.flags = CHASSIS_OP_MIXES_ONLY;
    }
    desc.output_dtype = dtype;
    ValueId out = 0;
    check(b_->op(b_, &desc, &out));
    return out;
  }
  void output(const std::string& name, ValueId value) { check(b_->output(b_, str_of(name), value)); }
  void chain(const std::string& name, const std::string& prefix, const std::vector<uint32_t>& blocks) {
    check(b_->chain(b_, str_of(name), str_of(prefix), blocks.data(), static_cast<uint32_t>(blocks.size())));
  }

 private:
  static void check(chassis_status_t* status) { throw_if_failed(status, "builder"); }
  static chassis_attr_t attr(const std::string& key, const AttrValue& value) {
    chassis_attr_t out{};
    out.name = str_of(key);
    if (auto* i = std::get_if<int64_t>(&value)) out.tag = CHASSIS_ATTR_INT, out.value.i = *i;
    if (auto* f = std::get_if<double>(&value)) out.tag = CHASSIS_ATTR_FLOAT, out.value.f = *f;
    if (auto* s = std::get_if<std::string>(&value))
      out.tag = CHASSIS_ATTR_STRING, out.value.list = {s->data(), s->size()};
    if (auto* l = std::get_if<std::vector<int64_t>>(&value))
      out.tag = CHASSIS_ATTR_INT_LIST, out.value.list = {l->data(), l->size()};
    if (auto* l = std::get_if<std::vector<double>>(&value))
      out.tag = CHASSIS_ATTR_FLOAT_LIST, out.value.list = {l->data(), l->size()};
    return out;
  }
  const chassis_builder_t* b_;
};

inline Program record(const std::function<void(Recorder&)>& body) {
  return record_program([&](const chassis_builder_t* b) {
    return guarded([&] {
      Recorder recorder(b);
      body(recorder);
    });
  });
}

// The message of the error that `body` throws; empty if it throws none.
inline std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}
inline std::string record_refusal(const std::function<void(Recorder&)>& body) {
  return refusal([&] { record(body); });
}

// An embedding, `layers` residual blocks without attention, and a head, tied to the embedding if `tied`.
struct SmallModel {
  int64_t vocab = 11, hidden = 4, ffn = 6;
  size_t layers = 2;
  bool tied = false;

  Program program() const {
    return record([this](Recorder& r) {
      const DimId v = r.dim("vocab", vocab), h = r.dim("hidden", hidden), f = r.dim("ffn", ffn);
      const std::vector<DimId> stream = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, h};
      const uint32_t embed = r.block("embed", [&] {
        const SlotId table = r.slot("embed.weight", {{v}, {h}}, {CHASSIS_ROLE_EMBEDDING});
        r.output("hidden", r.op("embedding", "embedding", {r.field("input_ids")}, {table}, {}, {h}));
      });
      const uint32_t layer = r.block("layer", [&] {
        const ValueId x = r.input("hidden", stream);
        const SlotId gain = r.slot("norm.weight", {{h}}, {CHASSIS_ROLE_NORM, CHASSIS_INIT_ONES});
        const ValueId n = r.op("rms_norm", "norm", {x}, {gain}, {{"eps", 1e-5}});
        const SlotId up = r.slot("up.weight", {{f}, {h}}), bias = r.slot("up.bias", {{f}}, {CHASSIS_ROLE_BIAS});
        const ValueId u = r.op("linear", "up", {n}, {up, bias}, {}, {f});
        const ValueId a = r.op("activation", "gelu", {u}, {}, {{"function", std::string("gelu")}});
        const ValueId d = r.op("linear", "down", {a}, {r.slot("down.weight", {{h}, {f}})}, {}, {h});
        r.output("hidden", r.op("add", "residual", {x, d}));
      });
      const uint32_t head = r.block("head", [&] {
        const ValueId x = r.input("hidden", stream);
        const SlotId weight = r.slot("lm_head.weight", {{v}, {h}},
                                     {CHASSIS_ROLE_HEAD, CHASSIS_INIT_NORMAL, 0.5, tied ? "embed.weight" : ""});
        const ValueId logits = r.op("linear", "lm_head", {x}, {weight}, {}, {v});
        r.output("logits", logits);
        r.output("loss",
                 r.op("cross_entropy", "loss", {logits, r.field("labels")}, {}, {{"ignore_index", int64_t{-100}}}));
      });
      r.chain("embed", "", {embed});
      r.chain("layers", "layers.{i}", std::vector<uint32_t>(layers, layer));
      r.chain("head", "", {head});
    });
  }
};

}  // namespace chassis::test
