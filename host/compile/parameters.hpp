// The parameters of a recorded program: one entry for each tensor that exists, found by name or by (unit, slot). A
// table is complete once it is made; then it may be placed, and a ParameterStorage holds its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/compile/parameter.hpp"
#include "host/compile/quantized_parameters.hpp"
#include "host/graph/program.hpp"
#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

class ParameterTable;

struct ParameterOptions {
  Dtype compute = Dtype::f32;                        // precision of the run
  std::function<void(ParameterTable&)> freeze = {};  // marks the parameters that are not trained
};

class ParameterTable {
 public:
  // Entries without tensors. A tied slot leads to the parameter it is tied to. What is trained is stored in fp32, the
  // rest in the precision of the run.
  ParameterTable(const Program& program, const ProgramLayout& layout, const ParameterOptions& options = {});

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  Parameter* find(std::string_view name) const;
  // Units count the blocks of all chains in program order.
  Parameter& at(size_t unit, SlotId slot) const { return *units_[unit][slot]; }
  const std::vector<Parameter*>& of_unit(size_t unit) const { return units_[unit]; }

  int64_t num_elements(bool trainable_only) const;
  // Parameters of the model that the program does not have, since its objective needs none of them. Files have them.
  const std::vector<std::string>& left_out() const { return left_out_; }

  Dtype compute() const { return compute_; }
  // Sets the mesh that divides the shards, and this rank. Refused while there is a ParameterStorage. Default: rank 0 of
  // the program's own axes.
  void place(MeshShape mesh, int rank);
  const MeshShape& mesh() const { return mesh_; }
  int rank() const { return rank_; }

  // Encodes and decodes quantized parameters for this rank, one at a time. The table must outlive it.
  QuantizedParameters quantized() const { return {mesh_, rank_}; }

  // The functions below need a ParameterStorage.

  // Fills the shards from the counter-based generator: an element depends only on seed, name and index, so that any
  // layout holds the same values. Then calls update_values(). kAdded: only parameters that an adapter added.
  enum class Which { kAll, kAdded };
  void initialize(uint64_t seed, Which which = Which::kAll);
  // The same for the parameters that `which` chooses.
  void initialize(uint64_t seed, const std::function<bool(const Parameter& p)>& which);
  // Copies what `from` stores to all parameters that do not share its tensors, cast to their dtype. Throws a config
  // error that names a parameter whose shards differ.
  void copy_from(const ParameterTable& from);
  // The bytes of this rank's tensors, without gradients and without those that it shares with `lender`. NULL: with all.
  uint64_t stored_bytes(const ParameterTable* lender = nullptr) const;
  // value = cast(shard), where they are two tensors of the same shape. Strategies update the divided ones.
  void update_values();
  void start_step();  // gradients count as zero again
  // [control] Creates the tensors of one parameter as ParameterStorage does, in a storage that has none of it.
  void allocate_one(Parameter& p, Device device) const;
  // Creates the value of a parameter that has its other tensors, if it is not gathered; its contents are undefined.
  void allocate_value(Parameter& p, Device device) const;
  // Frees the tensors of one parameter.
  static void release_one(Parameter& p);
  // Takes the tensors of a parameter that describes the same part of the same rank.
  static void take_tensors(Parameter& p, Parameter& from);

 private:
  friend class ParameterStorage;
  void add_unit(const Program& program, const ProgramLayout& layout, const Chain& chain, size_t block);
  void join_ties(const Program& program, const ProgramLayout& layout);
  void allocate(Device device, const ParameterTable* lender);
  static bool borrow(Parameter& p, const Parameter& from);
  void release();

  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::vector<Parameter*>> units_;
  std::vector<std::string> left_out_;
  Dtype compute_ = Dtype::f32;
  MeshShape mesh_;
  int rank_ = 0;
  bool is_allocated_ = false;
};

// The tensors of a table's parameters on the rank for which the table is placed. Frees them, and gradients, when it is
// destroyed; a parameter of which this rank stores nothing keeps its empty shard, for the storage of another rank.
class ParameterStorage {
 public:
  // [control] Creates shards on the device, and values where they are not gathered; contents are undefined, padding is
  // zero. A table has one storage at a time, and must outlive it.
  // With a lender, whose storage must outlive this one, frozen parameters that it freezes too, under the same name and
  // on the same part of the same rank, share its tensors.
  ParameterStorage(ParameterTable& parameters, Device device, const ParameterTable* lender = nullptr);
  // Has no tensor until ParameterTable::allocate_one() or take_tensors() gives a parameter some.
  explicit ParameterStorage(ParameterTable& parameters);

 private:
  struct Release {
    void operator()(ParameterTable* parameters) const { parameters->release(); }
  };
  std::unique_ptr<ParameterTable, Release> parameters_;
};

}  // namespace chassis
