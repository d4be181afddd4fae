// Quantizes parameters while they are loaded: each rank encodes the elements that it reads, as they come.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/session/session.hpp"

namespace chassis {

// How the parameters of one directory that are quantized here are loaded.
class QuantizedLoad {
 public:
  // `communicator`: NULL in a program of one process.
  QuantizedLoad(ParameterTable& parameters, Communicator* communicator, const CheckpointReader& reader)
      : parameters_(parameters), communicator_(communicator), reader_(reader) {}

  // Adds what fills the components of a parameter: themselves, if the directory has them, else values that are encoded
  // as they come. `plain` is where the values would be.
  void add(Parameter& p, LoadTensor plain, std::vector<LoadTensor>& out);
  // True for a name that belongs to components.
  bool has(const std::string& disk_name) const { return names_.contains(disk_name); }
  // Throws a storage error if a tensor of floats holds codes: if components of the parameter are beside it.
  void refuse_codes_in(const DiskTensor& found, const Parameter& p) const;
  LocalTensors local(LocalTensors plain) const;
  // [all-ranks] When all ranks have their components: makes those that depend on the whole parameter, one parameter at
  // a time, and verifies those that were read.
  void finish(const std::vector<LoadTensor>& tensors, const BucketPair& buckets);

 private:
  void add_components(Parameter& p, const LoadTensor& plain, std::vector<LoadTensor>& out);
  void compare_blocks(const DiskTensor& found, const Component& component, const Parameter& p) const;
  // A directory with components of some parameters holds the values of those that stay as they are.
  void refuse_mixture() const;

  ParameterTable& parameters_;
  Communicator* const communicator_;
  const CheckpointReader& reader_;
  std::set<std::string> names_;
  std::string first_values_;              // of a parameter that is encoded, on disk
  std::vector<Parameter*> read_;          // their components
  std::map<std::string, Tensor> states_;  // texts, by name on disk
  std::map<const Parameter*, std::string> state_of_;
};

// Throws if a directory holds components and the session quantizes nothing. `name_of` returns a parameter's name there.
void refuse_components(const Session& session, const CheckpointReader& reader,
                       const std::function<std::string(const Parameter& p)>& name_of);

// Whether a directory has components of the parameter whose values would be `plain`.
bool has_components(const CheckpointReader& reader, const LoadTensor& plain);

// The tensors in which a parameter is saved: itself, or its components.
std::vector<Descriptor> stored_tensors(const ParameterTable& parameters, const Descriptor& parameter);

// What a rank has of a loaded tensor before QuantizedLoad::finish(): itself, or of one that is encoded the components,
// in their staged dtypes.
std::vector<Descriptor> encoded_tensors(const ParameterTable& parameters, const LoadTensor& loaded);

}  // namespace chassis
