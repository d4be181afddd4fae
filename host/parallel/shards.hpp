// Gathers whole parameters from their shards, frees them, and reduces gradients. Implements chassis_shards_t: the
// parallel strategy decides when, Shards knows how. Lengths and offsets follow from the descriptors alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/compile/parameters.hpp"
#include "host/parallel/shard_rule.hpp"
#include "host/service/comm.hpp"

namespace chassis {

class Shards {
 public:
  // `here` are the parameters of the table that this rank reads, as strategies number them; `rules` in their order.
  Shards(ParameterTable& table, const std::vector<Parameter*>& here, std::vector<ShardRule> rules,
         Communicator& communicator, Device device);
  ~Shards();

  // [control] Call after the table's allocate. Makes resident tensors, in the memory of their shards where possible.
  // `keeps`: the shards keep their contents; otherwise these are undefined afterwards.
  void allocate(bool keeps = false);
  // [step] Marks resident tensors as out of date, after a load, an initialization or an optimizer step.
  void mark_stale();
  // Names of resident parameters that are out of date.
  std::vector<std::string> stale() const;

  // [step][all-ranks] These work as in chassis_shards_t.
  void gather(std::span<const uint32_t> ids, const std::string& name);
  void wait_gathered(std::span<const uint32_t> ids);
  void release(std::span<const uint32_t> ids);
  void shrink(std::span<const uint32_t> ids, int ways);
  void reduce(std::span<const uint32_t> ids, uint32_t flags, const std::string& name);
  void wait_reduced(std::span<const uint32_t> ids);
  bool is_whole(uint32_t id) const;
  uint64_t gathered_bytes() const { return gathered_bytes_; }
  // [step] Waits for everything in flight. Throws if a parameter that is not resident is still gathered.
  void wait_all();

  const chassis_shards_t* table() const { return &table_; }
  Device device() const { return device_; }  // device of whole parameters and gradients

 private:
  enum class State { kSharded, kGathering, kWhole };

  // A rank's part of the whole tensor, in elements; in the shard it always starts at 0.
  struct Part {
    int64_t begin = 0;
    int64_t length = 0;
  };
  struct Lane;
  struct Flight;
  // A stored tensor: a plain parameter, or one component of a quantized one.
  struct Entry {
    Parameter* parameter = nullptr;
    StoredComponent* component = nullptr;  // NULL: the parameter itself
    Dtype value_dtype = Dtype::f32;        // dtype that ops read
    ShardRule rule;
    ProcessGroup* group = nullptr;     // ranks that share the parameter; NULL: this rank alone
    ProcessGroup* replicas = nullptr;  // ranks that hold the same shard; NULL: this rank alone
    int64_t elements = 0;           // elements of the whole tensor
    int64_t chunk = 0;              // elements that every rank sends, padded; with an owner only the owner sends
    State state = State::kSharded;
    uint32_t uses = 0;
    bool fresh = false;     // a resident value is up to date with its shard
    bool is_table = false;  // a component without units, such as a code table: whole everywhere, and never cut
    std::shared_ptr<Flight> gathering, reducing;
    Tensor partial;  // gradient summed over the group, not yet over the replicas
    // After shrink: this rank's part of the whole tensor within `kept_group`.
    ProcessGroup* kept_group = nullptr;
    Tensor kept;

    Tensor& value() const { return component ? component->value : parameter->value; }
    Tensor& shard() const { return component ? component->shard : parameter->shard; }
    const std::vector<int64_t>& local_shape() const {
      return component ? component->local_shape : parameter->local_shape;
    }
  };

  void add_entry(Parameter& parameter, size_t component, ShardRule rule);
  Entry& entry(uint32_t id) { return entries_[id]; }
  // The entries of parameters as strategies number them.
  std::vector<uint32_t> entries_of(std::span<const uint32_t> parameters) const;
  int group_size(const Entry& entry) const { return entry.group ? entry.group->size() : 1; }
  int group_rank(const Entry& entry) const { return entry.group ? entry.group->rank() : 0; }
  static Part part(const Entry& entry, int rank);  // `rank` is an index in the group
  static int64_t sent(const Entry& entry, int rank);
  int64_t own_elements(const Entry& e) const { return e.group ? sent(e, group_rank(e)) : e.chunk; }
  static Part even_part(int64_t count, int ways, int rank);
  class Launches;
  void start(Flight& flight, uint32_t op);
  void start_gather(ProcessGroup& group, Dtype dtype, const std::vector<std::vector<uint32_t>>& lanes,
                    const std::string& name);
  void finish_gather(Flight& flight);
  void copy_parts(const Entry& entry, const Lane& lane, size_t i, int ranks);
  bool moves_data() const;
  Tensor whole_buffer(const Entry& entry) const;
  bool value_can_be_shard(const Entry& entry) const;
  bool is_large_and_unpadded(const Entry& entry, Dtype dtype) const;
  bool gathers_in_place(const Entry& entry, Dtype dtype) const;
  bool reduces_in_place(const Entry& entry) const;
  void make_whole_locally(Entry& entry);
  void free_whole(Entry& entry);
  void set_whole(Entry& entry, Tensor value);
  Tensor take_gradient(Entry& entry);
  void start_reduce(ProcessGroup* group, Dtype dtype, const std::vector<std::vector<uint32_t>>& lanes, bool keep,
                    const std::string& name);
  void fill_with_gradients(Lane& lane, Dtype dtype, int ranks);
  void finish_reduce(Flight& flight);
  void add_reduced(Entry& entry, Tensor sum);
  Tensor to_shard_device(const Parameter& parameter, const Tensor& gradient) const;

  ParameterTable& parameters_;
  Communicator& communicator_;
  Device device_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> first_entry_;  // by parameter, and the end of the last
  uint64_t gathered_bytes_ = 0;
  chassis_shards_t table_{};
};

}  // namespace chassis
