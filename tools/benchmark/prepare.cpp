// Measures the preparation of the training data of a configuration:
//   chassis-prepare CONFIG [KEY=VALUE …]
// Prints a line of JSON: seconds from opening the files to the complete store, their bytes, rows, tokens, and the peak
// memory of the whole process in MiB.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/config/config.hpp"
#include "host/session/session.hpp"

namespace chassis {
namespace {

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

int prepare(const std::string& path, const std::vector<std::string>& overrides) {
  Session session(load_config(path, overrides), {});
  const double before_mib = peak_mib();
  const auto start = std::chrono::steady_clock::now();
  const auto data = open_train_data(session.data_needs());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Json result = {{"seconds", seconds}, {"peak_mib", peak_mib()}, {"start_mib", before_mib}};
  uint64_t num_bytes = 0, num_rows = 0, num_tokens = 0;
  for (const RowSource& set : data->sets()) {
    for (const std::string& file : set.store().source_files()) num_bytes += std::filesystem::file_size(file);
    num_rows += set.store().facts().num_rows;
    num_tokens += set.store().facts().num_tokens;
  }
  result["bytes"] = num_bytes;
  result["rows"] = num_rows;
  result["tokens"] = num_tokens;
  result["utilisation"] = data->utilisation();
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "chassis-prepare CONFIG [KEY=VALUE …]\n");
    return 2;
  }
  try {
    return chassis::prepare(argv[1], {argv + 2, argv + argc});
  } catch (const chassis::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
