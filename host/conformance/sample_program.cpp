// Writes programs as lines of text, and makes batches whose ids rarely repeat.
#include "host/conformance/sample_program.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "host/base/batch_fields.hpp"
#include "host/base/printable.hpp"
#include "host/service/rng.hpp"
#include "host/session/fields.hpp"

namespace chassis {
namespace {

std::string attr_text(const AttrValue& value) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

std::string parameter_text(const Program& program, const ParameterSlot& slot) {
  std::string text = fmt::format("parameter {} {} role {} init {} {} tied to '{}'", slot.name,
                                 program.global_shape(slot), slot.role, slot.init, slot.init_std, slot.tied_to);
  if (slot.frozen) text += " frozen";
  if (slot.added) text += fmt::format(" added with learning rate × {}", slot.lr_scale);
  return text;
}

// One line per dim, block, slot, op, output, field and chain.
std::vector<std::string> lines_of(const Program& program) {
  std::vector<std::string> out;
  for (const GraphDim& dim : program.dims) out.push_back(fmt::format("dim {} = {}", dim.name, dim.size));
  for (const BlockType& block : program.blocks) {
    out.push_back("block " + block.name);
    for (const ParameterSlot& slot : block.slots) out.push_back(parameter_text(program, slot));
    for (const Op& op : block.ops) {
      std::string attrs;
      for (const auto& [name, value] : op.attrs) attrs += " " + name + "=" + attr_text(value);
      out.push_back(fmt::format("op {} '{}' {} {}{}", op.id.text(), op.name, op.inputs, op.params, attrs));
    }
    for (const auto& [name, value] : block.outputs) out.push_back(fmt::format("output {} = {}", name, value));
    for (const auto& [name, value] : block.fields)
      out.push_back(fmt::format("field {} = {} {}", name, value, program.field_text(program.fields.at(name))));
  }
  for (const Chain& chain : program.chains)
    out.push_back(fmt::format("chain {} {} {}", chain.name, chain.prefix, chain.blocks));
  return out;
}

}  // namespace

std::string difference(const Program& got, const Program& expected) {
  const auto a = lines_of(got), b = lines_of(expected);
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "nothing", right = i < b.size() ? b[i] : "nothing";
    if (left != right) return fmt::format("\"{}\", expected \"{}\"", printable(left), printable(right));
  }
  return "";
}

std::string unknown_field(const Program& program) {
  for (const auto& [name, field] : program.fields) {
    const BatchFieldSpec* spec = find_batch_field(name);
    if (spec == nullptr || !is_given(program, field, *spec))
      return fmt::format("it needs the field '{}', {}; the test batch has {}", printable(name),
                         program.field_text(field), batch_fields_text());
  }
  return "";
}

Fields sample_fields(const Program& program) {
  const auto dim = program.find_dim("vocab");
  const int64_t vocab = dim ? program.dims[*dim].size : 2;
  std::array<int32_t, kSampleBatch * kSampleTime> ids{}, targets{};
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) * 7 % vocab);
    targets[i] = i % 5 == 4 ? kIgnoreLabel : static_cast<int32_t>((static_cast<int64_t>(i) * 7 + 3) % vocab);
  }
  Fields out;
  const NamedSizes sizes = largest_sizes(program, kSampleBatch, kSampleTime);
  for (const auto& [name, taken] : program.fields) {
    HostField field(*find_batch_field(name), sizes);
    for (size_t row = 0; row < kSampleBatch; ++row) {
      const auto of_row = [&](std::span<const int32_t> values) {
        return values.subspan(row * kSampleTime, kSampleTime);
      };
      field.write({.ids = of_row(ids), .targets = of_row(targets)}, static_cast<int64_t>(row), 0);
    }
    out[name] = to_tensor(field, {});
  }
  return out;
}

void fill_sample_values(ParameterTable& parameters, ParameterTable::Which which) {
  for (const auto& p : parameters.all()) {
    if (which == ParameterTable::Which::kAdded && !p->added) continue;
    std::vector<float> values(static_cast<size_t>(p->stored().num_elements()));
    random_normal(5, p->name, 0, values);
    const bool is_matrix = p->local_shape.size() > 1 && p->role != CHASSIS_ROLE_EMBEDDING;
    const double deviation = is_matrix ? 1.0 / std::sqrt(static_cast<double>(p->local_shape.back()))
                             : p->role == CHASSIS_ROLE_EMBEDDING ? 1.0
                                                                 : 0.2;
    for (float& value : values)
      value = static_cast<float>(deviation) * value + (p->init == CHASSIS_INIT_ONES ? 1.0f : 0.0f);
    p->stored().copy_from(Tensor::borrow(values.data(), p->stored().sizes(), Dtype::f32));
  }
  parameters.update_values();
}

std::vector<float> float_values(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  Tensor::borrow(values.data(), tensor.sizes(), Dtype::f32).copy_from(tensor);
  return values;
}

}  // namespace chassis
