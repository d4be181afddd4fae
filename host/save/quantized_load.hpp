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

// Loads the parameters of one directory that this session quantizes.
class QuantizedLoad {
 public:
  // `session`: NULL if this process holds all parameters, or only compares them with the directory.
  QuantizedLoad(ParameterTable& parameters, Session* session, const CheckpointReader& reader)
      : parameters_(parameters), session_(session), reader_(reader) {}

  // Adds what fills the components of a parameter: the components themselves if the directory has them, otherwise
  // values, which are encoded as they arrive. `plain` says where the values would be. Throws a storage error if the
  // directory holds them in a way that cannot be read.
  void add(Parameter& p, LoadTensor plain, std::vector<LoadTensor>& out);
  // Call before the tensors are read. Allocates what encoding needs.
  void start(const std::vector<LoadTensor>& tensors);
  // True for a name that belongs to components.
  bool has(const std::string& disk_name) const { return names_.contains(disk_name); }
  // Throws a storage error if a floating-point tensor holds codes, that is, if the directory also has components of the
  // parameter.
  void refuse_codes_in(const DiskTensor& found, const Parameter& p) const;
  LocalTensors local(LocalTensors plain) const;
  // [all-ranks] Call when all ranks have their components. Makes those that depend on the whole parameter, one
  // parameter at a time, and verifies those that were read.
  void finish(const std::vector<LoadTensor>& tensors, const BucketPair& buckets);

 private:
  void add_components(Parameter& p, const LoadTensor& plain, std::vector<LoadTensor>& out);
  void add_state(const Parameter& p, const DiskTensor& text, std::vector<LoadTensor>& out);
  // `elements`: those of which `found` holds a component.
  void compare_blocks(const DiskTensor& found, const Component& component, int64_t elements) const;
  // Throws if the directory has components of some parameters, and values of others that would be quantized here: a
  // quantized model stores as values what must stay so.
  void refuse_mixture() const;

  ParameterTable& parameters_;
  Session* const session_;
  const CheckpointReader& reader_;
  std::set<std::string> names_;
  std::string first_values_;                                        // name on disk of a parameter that is encoded
  std::vector<Parameter*> read_;                                    // parameters whose components are read
  std::map<std::string, Tensor> states_;                            // texts, by name on disk
  std::map<const Parameter*, std::vector<std::string>> states_of_;  // names of its texts, one for each slice
};

// Throws if a directory holds components and the session quantizes nothing. `name_of` returns a parameter's name there.
void refuse_components(const Session& session, const CheckpointReader& reader,
                       const std::function<std::string(const Parameter& p)>& name_of);

// Whether a directory has components of the parameter whose values would be `plain`.
bool has_components(const CheckpointReader& reader, const LoadTensor& plain);

// The tensors in which a parameter is saved: the parameter itself, or its components.
std::vector<Descriptor> stored_tensors(const ParameterTable& parameters, const Descriptor& parameter);

// The tensors that a rank holds for a loaded tensor before QuantizedLoad::finish(): the tensor itself or, if it is
// encoded, its components in their staged dtypes.
std::vector<Descriptor> encoded_tensors(const ParameterTable& parameters, const LoadTensor& loaded);

}  // namespace chassis
