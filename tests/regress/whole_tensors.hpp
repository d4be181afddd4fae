// Reads every tensor of a native checkpoint as a whole, by its name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/reader.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis::test {

inline std::map<std::string, Tensor> whole_tensors(const std::string& path, LoadedPlugins& plugins) {
  const FormatPlugin format(plugins.create("format", "native"));
  const BucketPair buckets(1 << 16);
  CheckpointReader reader(path, format);
  std::vector<LoadTensor> wanted;
  std::map<std::string, Tensor> found;
  for (const DiskTensor& t : reader.tensors()) {
    wanted.push_back({Descriptor::plain(t.name, t.dtype, t.global_shape), ""});
    found[t.name] = Tensor::zeros(std::vector<int64_t>(t.global_shape.begin(), t.global_shape.end()), t.dtype);
  }
  reader.load(wanted, {}, buckets, [&](const Descriptor& d, int) { return found.at(d.fqn); });
  return found;
}

}  // namespace chassis::test
