// The key of a tokenised set: lists what it was made from, decides whether it is reused, and shows what changed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// Everything that the ids of a set depend on. Files are identified by size, times, inode, head and tail, which is fast;
// a file that was copied or renamed counts as changed.
// `encoder` is the fingerprint of what makes documents of records. `poll` is called for each file; it may throw.
Json store_key(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
               const std::string& encoder, const std::function<void()>& poll = {});
// Identifies a file by its path, size, times, inode, head and tail.
Json file_key(const std::string& path);
// Describes the first difference; empty if there is none.
std::string key_difference(const Json& kept, const Json& wanted);
// The folder of the set; one for each path and way of reading it. Sets for other tokenizers are in folders of this name
// and a number.
std::string store_folder(const DataSetConfig& config, const std::string& cache_dir);

}  // namespace chassis
