// The steps of a load, top to bottom.
#include "host/save/load.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/save/quantized_load.hpp"

namespace chassis {
namespace {

// The tensors to read: for quantized parameters, their components or the values to encode.
std::vector<LoadTensor> tensors_in_files(const ParameterTable& parameters, const LoadSource& source,
                                         QuantizedLoad& quantized) {
  std::vector<LoadTensor> out;
  for (const LoadTensor& tensor : source.tensors) {
    Parameter* const p = parameters.find(tensor.descriptor.fqn);
    if (p != nullptr && p->is_quantized())
      quantized.add(*p, tensor, out);
    else
      out.push_back(tensor);
  }
  return out;
}

// Those of the source; names of components may be ignored as well. Both arguments must outlive them.
LoadOptions options_with(const LoadSource& source, const QuantizedLoad& quantized) {
  LoadOptions options = source.options;
  options.skip = [&](const std::string& name) {
    return quantized.has(name) || (source.options.skip && source.options.skip(name));
  };
  return options;
}

LoadResult read_part_of_rank(const LoadState& state, const LoadSource& source, const std::vector<LoadTensor>& tensors,
                             const LocalTensors& local, const QuantizedLoad& quantized) {
  LoadOptions options = options_with(source, quantized);
  if (state.session != nullptr) {
    options.rank = state.session->rank();
    options.owned_only = true;
  }
  try {
    return source.reader.load(tensors, state.mesh, state.buckets, local, options);
  } catch (Misfit& misfit) {
    if (source.explain) source.explain(misfit);
    throw;
  }
}

// Sends what one rank has read to all ranks that hold it.
void share(const LoadState& state, const std::vector<LoadTensor>& tensors, const LoadResult& result,
           const LocalTensors& local) {
  std::vector<Descriptor> filled;
  for (const LoadTensor& tensor : tensors)
    if (std::ranges::find(result.absent, tensor.descriptor.fqn) == result.absent.end())
      std::ranges::move(encoded_tensors(state.parameters, tensor), std::back_inserter(filled));
  fill_replicas(filled, local, state.session->device(), static_cast<int64_t>(state.buckets.bucket_bytes()),
                state.session->ranks().communicator);
}

}  // namespace

LoadState LoadState::of(Session& session, LocalTensors local, const BucketPair& buckets) {
  return {session.parameters(), session.mesh(), std::move(local), buckets, &session};
}

Loaded load_into(const LoadState& state, const LoadSource& source) {
  Session* const session = state.session;
  CheckpointReader& reader = source.reader;
  QuantizedLoad quantized(state.parameters, session, reader);
  std::vector<LoadTensor> tensors;
  LocalTensors local;
  Loaded out;
  const auto read = [&] {
    tensors = tensors_in_files(state.parameters, source, quantized);
    quantized.start(tensors);
    local = quantized.local(state.local);
    out.result = read_part_of_rank(state, source, tensors, local, quantized);
  };
  if (session == nullptr) {
    read();
  } else {
    run_and_agree_on_damage(session->world(), "loading " + reader.path(), read);
    out.read = reader.verify_parts(out.result, session->world());
    if (source.options.hashed) out.hash = reader.content_hash(out.result.hashed, session->world());
    share(state, tensors, out.result, local);
  }
  quantized.finish(tensors, state.buckets);
  out.num_tensors = tensors.size() - out.result.absent.size();
  return out;
}

void expect_fit(ParameterTable& parameters, const LoadSource& source) {
  QuantizedLoad quantized(parameters, nullptr, source.reader);
  const std::vector<LoadTensor> tensors = tensors_in_files(parameters, source, quantized);
  source.reader.check(tensors, options_with(source, quantized));
}

void run_and_agree_on_damage(World& world, const std::string& what, const std::function<void()>& part) {
  std::optional<DamagedCheckpoint> own;
  world.run_and_agree(what, [&] {
    try {
      part();
    } catch (const DamagedCheckpoint& damage) {
      own = damage;
    }
  });
  const std::vector<std::string> all = world.exchange(what, own ? own->message() : "");
  if (own) throw *own;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw DamagedCheckpoint("rank " + std::to_string(rank) + ": " + all[rank]);
}

void open_on_all_ranks(World& world, const std::string& path, const std::function<void()>& open) {
  std::string files;
  world.run_and_agree("looking into " + path, [&] {
    const SourceDirectory directory(path);
    for (const auto& file : directory.files()) files += file.path + " " + std::to_string(file.num_bytes) + " bytes\n";
  });
  world.expect_same("the files in " + path, files);
  run_and_agree_on_damage(world, "loading " + path, open);
}

}  // namespace chassis
