// The shard descriptor: all facts about one logical tensor and how ranks hold it. Plain data, the same on every rank.
// layout.hpp computes what it means for one rank.
#pragma once

#include <string>
#include <vector>

#include "host/state/dtype.hpp"
#include "host/state/shape.hpp"

namespace chassis {

// Elements [offset, offset + length) of a flattened tensor.
struct FlatRange {
  int64_t offset = 0;
  int64_t length = 0;
  bool operator==(const FlatRange&) const = default;
};

// One step of sharding. Each placement divides what the previous one left to a rank, along one mesh axis or along
// several joined into one, of which the first varies slowest. A tensor is replicated along mesh axes that no placement
// names.
struct Placement {
  enum class Kind {
    kDimChunk,   // chunks of one dim, rounded up as by torch.chunk and FSDP2; later ranks may get less, or nothing
    kFlatRange,  // a range of the row-major elements; from here on the local tensor is one-dimensional
    kOnlyOn,  // one coordinate holds it, most others have no such tensor (a pipeline stage, a whole-matrix optimizer)
  };

  Kind kind = Kind::kDimChunk;
  std::vector<std::string> axes;

  int dim = 0;            // kDimChunk
  bool pad_even = false;  // kDimChunk: the local tensor of every coordinate has the full chunk size
  int64_t unit = 1;       // kDimChunk: cuts fall on multiples of this many indices (a head's rows)

  // kFlatRange. By default all coordinates have ceil(numel / n) elements, the last ones padded (ZeRO-3).
  // If there are ranges, one per coordinate, they are used as they are.
  std::vector<FlatRange> ranges;

  // kOnlyOn. `coordinate` owns the tensor; those in `copies` hold a copy of it (a tied tensor that two stages use).
  int coordinate = 0;
  std::vector<int> copies;

  bool is_on(int other) const;  // kOnlyOn

  static Placement dim_chunk(std::vector<std::string> axes, int dim);
  static Placement flat_range(std::vector<std::string> axes);
  static Placement flat_ranges(std::vector<std::string> axes, std::vector<FlatRange> ranges);
  static Placement only_on(std::vector<std::string> axes, int coordinate);

  // "dim_chunk(0) over tp"
  std::string text() const;
  bool operator==(const Placement&) const = default;
};

// Chooses, among the ranks that hold the same elements, the one that writes them and counts them in a norm.
enum class OwnerRule {
  kFirst,   // coordinate 0 on every replicated axis
  kSpread,  // chosen by a hash of the tensor's name, so that all replicas own some tensors of a model
  kGiven,   // Descriptor::owner_replica
};

// The positions at which a tensor may be cut, in row-major elements of its logical shape.
struct Granularity {
  enum class Kind { kElement, kBlock, kMatrix };
  Kind kind = Kind::kElement;
  int64_t block = 1;  // kBlock: only at multiples of this many elements

  static Granularity element() { return {}; }
  static Granularity block_of(int64_t elements) { return {Kind::kBlock, elements}; }
  static Granularity matrix() { return {Kind::kMatrix, 1}; }  // the last two dims stay whole
  bool operator==(const Granularity&) const = default;
};

// One of the tensors in which a composite tensor is stored. A 4-bit weight has 32 bytes and one absmax for every 64 of
// its elements, and one code table.
struct Component {
  enum class Form {
    kLikeTensor,  // the tensor's dims with the last one scaled, if that has whole units; else a vector
    kVector,      // [values]
    kColumn,      // [values, 1]
  };

  std::string suffix;  // appended to the tensor's FQN
  Dtype dtype = Dtype::u8;
  int64_t unit_elements = 0;  // elements of the tensor in one unit; 0 if the component is not divided but replicated
  int64_t unit_values = 1;    // values of this component for one unit
  Shape whole_shape;          // if unit_elements == 0
  Form form = Form::kLikeTensor;

  static Component per_unit(std::string suffix, Dtype dtype, int64_t unit_elements, int64_t unit_values);
  static Component whole(std::string suffix, Dtype dtype, Shape whole_shape);
  bool operator==(const Component&) const = default;
};

struct Descriptor {
  std::string fqn;
  Shape global_shape;  // logical: what files, norms and users see
  Shape padded_shape;  // at run time; padding is never written to a file
  Dtype dtype = Dtype::f32;
  std::vector<Placement> placements;  // in order of application
  OwnerRule owner = OwnerRule::kFirst;
  int owner_replica = 0;  // kGiven: the owner's Layout::replica()
  Granularity granularity;
  std::vector<Component> components;  // empty if the tensor is not composite

  // Unpadded and replicated everywhere.
  static Descriptor plain(std::string fqn, Dtype dtype, Shape global_shape);

  bool is_padded() const { return padded_shape != global_shape; }
  // Cuts are legal at multiples of this many row-major elements: lcm of the granularity and all components' units.
  int64_t block_elements() const;
  // One line for logs and messages.
  std::string text() const;
  bool operator==(const Descriptor&) const = default;
};

// Returns the first dim that a kDimChunk placement cuts within a block of `block` row-major elements, if every rank's
// local tensor has `local_shape`; -1 if there is none.
int dim_cut_within_blocks(const Descriptor& descriptor, const Shape& local_shape, int64_t block);

}  // namespace chassis
