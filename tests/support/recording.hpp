// A builder that writes one line for each thing that a model records; it checks nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "chassis/kind/model.h"
#include "tests/support/fake_host.hpp"

namespace fake {

class Recording {
 public:
  Recording() {
    raw_ = {sizeof raw_,
            0,
            this,
            [](const chassis_builder_t* b, chassis_str_t name, int64_t size, chassis_dim_t* out) {
              Recording& r = self(b);
              *out = static_cast<chassis_dim_t>(r.dims_.size());
              r.dims_.push_back(text_of(name));
              r.dim_sizes[text_of(name)] = size;
              return ok();
            },
            [](const chassis_builder_t* b, chassis_str_t name, chassis_block_t* out) {
              Recording& r = self(b);
              *out = static_cast<chassis_block_t>(r.blocks_.size());
              r.blocks_.push_back(text_of(name));
              r.values_.clear();
              r.slots_.clear();
              r.lines.push_back("block " + text_of(name));
              return ok();
            },
            [](const chassis_builder_t*) { return ok(); },
            [](const chassis_builder_t* b, chassis_str_t name, const chassis_dim_t* dims, uint32_t num_dims,
               chassis_value_t* out) {
              *out = self(b).value(text_of(name) + self(b).list(dims, num_dims));
              return ok();
            },
            [](const chassis_builder_t* b, chassis_str_t name, uint32_t, const chassis_dim_t*, uint32_t,
               chassis_value_t* out) {
              *out = self(b).value(text_of(name));
              return ok();
            },
            [](const chassis_builder_t* b, const chassis_slot_desc_t* desc, chassis_slot_t* out) {
              self(b).add_slot(*desc, out);
              return ok();
            },
            [](const chassis_builder_t* b, const chassis_op_desc_t* desc, chassis_value_t* out) {
              self(b).add_op(*desc, out);
              return ok();
            },
            [](const chassis_builder_t* b, chassis_str_t name, chassis_value_t value) {
              self(b).lines.push_back("  output " + text_of(name) + " = " + self(b).values_.at(value));
              return ok();
            },
            [](const chassis_builder_t* b, chassis_str_t name, chassis_str_t prefix, const chassis_block_t* blocks,
               uint32_t num_blocks) {
              self(b).lines.push_back("chain " + text_of(name) + " '" + text_of(prefix) + "' " +
                                      self(b).blocks_.at(blocks[0]) + " x " + std::to_string(num_blocks));
              return ok();
            },
            nullptr};  // our models have no bounded dim
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  const chassis_builder_t* builder() const { return &raw_; }

  std::vector<std::string> lines;
  std::map<std::string, int64_t> dim_sizes;
  std::map<std::string, std::vector<double>> float_lists;  // by attribute name; the last one wins
  std::map<std::string, double> floats;
  std::map<std::string, chassis_slot_desc_t> slots;  // by name; only the numbers are valid

 private:
  static Recording& self(const chassis_builder_t* b) { return *static_cast<Recording*>(b->impl); }
  static chassis_status_t* ok() { return nullptr; }

  chassis_value_t value(std::string text) {
    values_.push_back(std::move(text));
    return static_cast<chassis_value_t>(values_.size() - 1);
  }
  std::string list(const chassis_dim_t* dims, uint64_t count, const char* between = ", ") const {
    std::string out;
    for (uint64_t i = 0; i < count; ++i) out += (i ? between : "") + dims_.at(dims[i]);
    return "[" + out + "]";
  }
  void add_slot(const chassis_slot_desc_t& desc, chassis_slot_t* out) {
    std::string text = text_of(desc.name);
    for (uint32_t i = 0; i < desc.num_axes; ++i) text += list(desc.axes[i].dims, desc.axes[i].num_dims, "*");
    if (desc.tied_to.len > 0) text += " tied to " + text_of(desc.tied_to);
    *out = static_cast<chassis_slot_t>(slots_.size());
    slots_.push_back(text);
    slots[text_of(desc.name)] = desc;
  }
  void add_op(const chassis_op_desc_t& desc, chassis_value_t* out) {
    std::string text;
    for (uint32_t i = 0; i < desc.num_inputs; ++i) {
      text += (i ? ", " : "") + (desc.inputs[i] == CHASSIS_ABSENT ? "-" : values_.at(desc.inputs[i]));
    }
    for (uint32_t i = 0; i < desc.num_params; ++i) text += "; " + slots_.at(desc.params[i]);
    std::string attrs;
    for (uint32_t i = 0; i < desc.num_attrs; ++i) {
      const chassis_attr_t& attr = desc.attrs[i];
      const std::string name = text_of(attr.name);
      if (attr.tag == CHASSIS_ATTR_INT && attr.value.i != 0) attrs += " " + name + "=" + std::to_string(attr.value.i);
      if (attr.tag == CHASSIS_ATTR_FLOAT) floats[name] = attr.value.f;
      if (attr.tag == CHASSIS_ATTR_STRING) {
        attrs += " " + std::string(static_cast<const char*>(attr.value.list.ptr), attr.value.list.len);
      }
      if (attr.tag == CHASSIS_ATTR_FLOAT_LIST) {
        const auto* begin = static_cast<const double*>(attr.value.list.ptr);
        float_lists[name].assign(begin, begin + attr.value.list.len);
      }
    }
    const std::string id = "%" + std::to_string(values_.size());
    lines.push_back("  " + id + " = " + text_of(desc.id) + "(" + text + ")" + attrs +
                    (desc.num_output_dims ? " -> " + list(desc.output_dims, desc.num_output_dims) : ""));
    *out = value(id);
  }

  chassis_builder_t raw_;
  std::vector<std::string> dims_ = {"B", "T"};
  std::vector<std::string> blocks_, values_, slots_;
};

}  // namespace fake
