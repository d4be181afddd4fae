// Quantized parameters outside a run, for a program of one process that writes them to files: few at a time in memory.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/save/model_directory.hpp"
#include "host/session/session.hpp"

namespace chassis {

class QuantizedWeights {
 public:
  // Reads the parameters of `directory`, which `reader` opened: their components, or values, which it quantizes. All
  // arguments must outlive it.
  QuantizedWeights(Session& session, CheckpointReader& reader, const ModelDirectory& directory);
  ~QuantizedWeights();
  QuantizedWeights(const QuantizedWeights&) = delete;
  QuantizedWeights& operator=(const QuantizedWeights&) = delete;

  // Whether the directory has components of a parameter, rather than values or nothing.
  bool is_stored(const Parameter& p) const;
  // Adds what CheckpointReader::check() expects of a quantized parameter.
  void add_wanted(const Parameter& p, std::vector<LoadTensor>& wanted);
  bool is_wanted(const std::string& disk_name) const { return names_.contains(disk_name); }
  // Decodes consecutive values of a parameter from its components.
  void decode(const Parameter& p, int64_t begin, std::span<float> values);
  // The parts that were read of each parameter, for content_hash().
  const std::vector<PartRead>& hashed() const { return hashed_; }

  // From now on, values are changed after they are read, and quantized again. `change` gets whole rows.
  using Change = std::function<void(const Parameter& p, const Box& rows, std::span<float> values)>;
  void change_values(Change change) { change_ = std::move(change); }

  // The tensors of a quantized parameter in files that have its slices under these names. `dtype`: that of its values
  // before quantization. Reads the parameter if the length of a text may depend on its values.
  std::vector<SaveTensor> saved_tensors(const Parameter& p, const std::vector<std::string>& names, Dtype dtype);
  // True for a tensor from saved_tensors().
  bool has(const Descriptor& tensor) const { return saved_.contains(tensor.fqn) || kept_.contains(tensor.fqn); }
  PartSource source();

 private:
  struct Saved {
    Parameter* parameter;
    size_t component;
  };
  Parameter& own(const Parameter& p) const;
  LoadTensor plain(const Parameter& p) const;
  void allocate(Parameter& p);
  // Has p in memory. Rationale: files are written in the order of names, in which the linears of a layer's experts take
  // turns, so that many are read again if only one is kept.
  Parameter& hold(Parameter& p);
  void read(Parameter& p);
  void change(Parameter& p);
  Tensor saved(const Descriptor& tensor);

  CheckpointReader& reader_;
  const ModelDirectory& directory_;
  const BucketPair buckets_;      // separate, because those of a save hold what is being written
  ParameterTable parameters_;     // separate, because those of a session may be in use, and divided
  std::vector<Parameter*> held_;  // the last used one last
  Change change_;
  std::set<std::string> names_, read_;
  std::vector<PartRead> hashed_;
  std::map<std::string, Saved> saved_;  // by name
  std::map<std::string, Tensor> kept_;  // those that belong to a whole parameter, which are small
};

}  // namespace chassis
