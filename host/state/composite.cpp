// Shapes, cuts and placements of a component, scaled from those of its tensor.
#include "host/state/composite.hpp"

#include <algorithm>
#include <numeric>

#include "host/base/error.hpp"

namespace chassis {

namespace {

// Converts elements of the tensor to values of the component.
class Scale {
 public:
  Scale(const Descriptor& composite, const Component& component) : composite_(composite), component_(component) {}

  int64_t exact(int64_t elements, const std::string& what) const {
    if (elements % component_.unit_elements != 0)
      throw config_error("tensor '" + composite_.fqn + "' " + text(composite_.global_shape) + ": " + what + " of " +
                         std::to_string(elements) + " elements is not a multiple of the units of '" +
                         component_.suffix + "', which have " + std::to_string(component_.unit_elements) + " elements");
    return elements / component_.unit_elements * component_.unit_values;
  }
  int64_t rounded_up(int64_t elements) const {
    return (elements + component_.unit_elements - 1) / component_.unit_elements * component_.unit_values;
  }

 private:
  const Descriptor& composite_;
  const Component& component_;
};

// The last dims nearest to `size`, and the largest unit, that would let dims after the first be cut.
std::string sizes_that_would(int64_t size, int64_t unit) {
  const int64_t below = size / unit * unit, fitting = std::gcd(size, unit);
  return "a last dim of " + (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + unit) +
         " can be cut this way, or one of " + std::to_string(size) + " in units of " + std::to_string(fitting) +
         "; dim 0 and flat ranges can be cut with any size";
}

}  // namespace

Descriptor component_descriptor(const Descriptor& composite, const Component& component, bool keep_dims) {
  Descriptor out = composite;
  out.fqn += component.suffix;
  out.dtype = component.dtype;
  out.components.clear();
  out.granularity = Granularity::element();

  if (component.unit_elements == 0) {
    out.global_shape = out.padded_shape = component.whole_shape;
    std::erase_if(out.placements, [](const Placement& p) { return p.kind != Placement::Kind::kOnlyOn; });
    return out;
  }

  const Scale scale(composite, component);
  const Shape& shape = composite.global_shape;
  const int64_t block = composite.block_elements();
  const int last = shape.ndim() - 1;
  const bool cuts_columns =
      std::any_of(composite.placements.begin(), composite.placements.end(),
                  [](const Placement& p) { return p.kind == Placement::Kind::kDimChunk && p.dim > 0; });
  const bool wants_dims = keep_dims || cuts_columns || component.form == Component::Form::kLikeTensor;
  const bool keeps_dims = wants_dims && last >= 0 && shape[last] % component.unit_elements == 0 &&
                          composite.padded_shape[last] % component.unit_elements == 0;
  const int64_t row_elements = keeps_dims || last < 0 || shape[0] == 0 ? 1 : numel(shape) / shape[0];

  out.granularity = Granularity::block_of(scale.exact(block, "a block"));
  if (keeps_dims) {
    out.global_shape[last] = scale.exact(shape[last], "the last dim");
    out.padded_shape[last] = scale.exact(composite.padded_shape[last], "the last dim");
  } else {
    for (int k = 1; k <= last; ++k)
      if (composite.padded_shape[k] != shape[k])
        throw config_error("tensor '" + composite.fqn + "' " + text(shape) + " is padded to " +
                           text(composite.padded_shape) + ", which moves the units of '" + component.suffix + "'");
    const bool is_column = component.form == Component::Form::kColumn;
    const auto shape_of = [&](int64_t values) { return is_column ? Shape{values, 1} : Shape{values}; };
    out.global_shape = shape_of(scale.rounded_up(numel(shape)));
    out.padded_shape = shape_of(scale.rounded_up(numel(composite.padded_shape)));
  }

  for (Placement& placement : out.placements) {
    if (placement.kind == Placement::Kind::kDimChunk) {
      if (keeps_dims && placement.dim != last) continue;
      if (!keeps_dims && placement.dim != 0)
        throw config_error("tensor '" + composite.fqn + "' " + text(shape) + ": " + placement.text() +
                           " divides units of '" + component.suffix + "', which have " +
                           std::to_string(component.unit_elements) + " elements")
            .hint(sizes_that_would(shape[last], component.unit_elements));
      const int64_t unit = std::lcm(placement.unit, block / std::gcd(block, row_elements));
      placement.unit = scale.exact(unit * row_elements, "a cut");
    } else if (placement.kind == Placement::Kind::kFlatRange) {
      for (FlatRange& range : placement.ranges) {
        const int64_t end = scale.rounded_up(range.offset + range.length);
        range.offset = scale.exact(range.offset, "the offset of a range");
        range.length = end - range.offset;
      }
    }
  }
  return out;
}

}  // namespace chassis
