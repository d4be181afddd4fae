// Feeds the reader a Megatron index and a data file, whose size is in the first two bytes. The reader throws a config
// error or returns every byte of the data once. An input that begins with an odd size is an llm.c shard.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "host/base/error.hpp"
#include "host/data/row_readers.hpp"

namespace {

void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

struct Folder {
  Folder() {
    path = std::filesystem::temp_directory_path() / ("chassis-idx-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  if (num_bytes < 2) return 0;
  static const Folder folder;
  const size_t size = data[0] + 256u * data[1];
  const std::string rest(reinterpret_cast<const char*>(data) + 2, num_bytes - 2);
  const std::string index = folder.path / "a.idx", bin = folder.path / "a.bin";
  const bool is_shard = size % 2 == 1;
  write(index, rest);
  write(bin, is_shard ? rest : std::string(size, '\1'));
  try {
    const auto rows = is_shard ? chassis::open_shard_rows(bin) : chassis::open_megatron_rows(bin, index);
    uint64_t num_rows = 0;
    for (chassis::RawRow row; rows->next(row);) {
      if (row.bytes.size() % 4 != 0 || row.line != ++num_rows) std::abort();
    }
    if (rows->num_bytes_read() != (is_shard ? rest.size() : size)) std::abort();
  } catch (const chassis::Error& error) {
    if (error.code() != chassis::ExitCode::kConfig) std::abort();
  }
  return 0;
}
