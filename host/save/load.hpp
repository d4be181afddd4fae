// Fills tensors from the files of one directory. Every load goes through load_into(): that of a model or an adapter
// (weights.hpp), of a checkpoint to resume (resume.cpp), and of one parameter to convert (quantized_weights.cpp). They
// decide what is read from where; this reads it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/compile/parameters.hpp"
#include "host/launch/world.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The tensors to fill. What it refers to must outlive the load.
struct LoadState {
  ParameterTable& parameters;
  const MeshShape& mesh;
  LocalTensors local;  // this rank's tensors: parameters that are not quantized, and optimizer states
  const BucketPair& buckets;
  // All its ranks fill `parameters`, which are its own. NULL in a program of one process.
  Session* session = nullptr;

  static LoadState of(Session& session, LocalTensors local, const BucketPair& buckets);
};

// An open directory, and what is read from it.
struct LoadSource {
  CheckpointReader& reader;
  // Each says where its tensor is. For a quantized parameter it says where its values would be: if the directory has
  // components instead, they are read.
  std::vector<LoadTensor> tensors;
  // Those that depend on the directory: skip, optional, hashed, progress. load_into() sets the others.
  LoadOptions options = {};
  // Called if the tensors do not fit, before the error is thrown on: may add a hint.
  std::function<void(Misfit& misfit)> explain = {};
};

struct Loaded {
  LoadResult result;       // of this rank
  size_t num_tensors = 0;  // that were filled, by all ranks
  // Only with a session:
  ReadBytes read;    // by all ranks
  std::string hash;  // CheckpointReader::content_hash(), if options.hashed is set
};

// [all-ranks] if there is a session, else in one process. In this order: lists what quantized parameters need, reads
// this rank's part, compares what ranks read in parts with the checksums, hashes it, sends it to the other ranks that
// hold it, and completes quantized parameters. Throws Misfit if the directory has other tensors, and on all ranks
// DamagedCheckpoint if a checksum differs. Does not refresh what is computed from parameters.
Loaded load_into(const LoadState& state, const LoadSource& source);
// Throws what load_into() throws if the tensors do not fit. Reads none, and needs no tensor in memory.
void expect_fit(ParameterTable& parameters, const LoadSource& source);

// [all-ranks] As world.run_and_agree(), but if `part` throws DamagedCheckpoint on one rank, all ranks throw it.
void run_and_agree_on_damage(World& world, const std::string& what, const std::function<void()>& part);
// [all-ranks] Calls `open`, which opens the directory `path`, under the name "loading PATH". Throws if ranks see
// different files there; such a checkpoint is not damaged.
void open_on_all_ranks(World& world, const std::string& path, const std::function<void()>& open);

}  // namespace chassis
