// Weights in and out of a session: from a checkpoint or model directory, and from one to the other.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/train/session.hpp"

namespace chassis {

// [all-ranks] Fills the parameters from a checkpoint or model directory, through buckets of its own. `from` empty: the
// newest checkpoint of the run, else model.path. Throws a storage error if there is neither.
void load_weights(Session& session, const std::string& from);
// The same from this directory.
void load_weights(Session& session, const std::string& path, const BucketPair& buckets);

// [all-ranks] What rank 0 finds is what all ranks go by.
std::string found_by_first(World& world, const std::string& what, const std::function<std::string()>& find);
// How one rank of a session reads its part.
LoadOptions load_options(Session& session);
// [all-ranks] What one rank has read, all that hold it get from there.
void share_what_was_read(Session& session, const std::vector<LoadTensor>& tensors, const LoadResult& result,
                         const LocalTensors& local, const BucketPair& buckets);

struct ExportRequest {
  std::string checkpoint;  // or model directory
  std::string directory;   // is made
  std::string dtype = "auto";
  std::string format = {};  // empty: what export.plugin is by default
  std::string base = {};    // a model directory whose tokenizer and other files are taken along; may be empty
  std::vector<std::string> plugin_path = {};
};
// A checkpoint as a model directory for others, in one process: through two buckets, no tensor is ever held. Of what it
// says only config.json is believed: no plugin and no path is taken from it.
SaveResult export_checkpoint(const ExportRequest& request);

}  // namespace chassis
