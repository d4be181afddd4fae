// A file of any bytes, read by the plugin parquet, which is linked into this program. Reading gives rows that are JSON
// objects in UTF-8, or an error with a code that the host can tell the user, and a message.
#include <simdjson.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "chassis/kind/rows.h"
#include "tests/support/fake_host.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

struct Reader {
  Reader() { path = std::filesystem::temp_directory_path() / ("chassis-parquet-fuzz-" + std::to_string(::getpid())); }
  ~Reader() { std::filesystem::remove(path); }

  // True for an error, which it releases.
  bool failed(chassis_status_t* status) {
    if (status == nullptr) return false;
    const int32_t code = host.table()->status_code(status);
    require(code == CHASSIS_INVALID_ARGUMENT || code == CHASSIS_DATA_LOSS);
    require(!host.message(status).empty());
    return true;
  }

  void read() {
    chassis_row_file_info_t info{};
    info.struct_size = sizeof info;
    void* file = nullptr;
    if (failed(table.open(instance.self(), fake::str(path), &info, &file))) return;
    require(info.num_rows >= -1);
    const chassis_row_sink_t sink = {sizeof sink, 0, nullptr, [](const chassis_row_sink_t*, chassis_str_t json) {
                                       const std::string_view row(json.ptr, json.len);
                                       require(row.starts_with('{') && row.ends_with('}'));
                                       require(simdjson::validate_utf8(row.data(), row.size()));
                                     }};
    constexpr uint64_t kMaxRows = 100;
    uint64_t num_bytes = 0;
    for (int calls = 0; calls < 100; ++calls) {
      chassis_rows_read_t given{};
      given.struct_size = sizeof given;
      if (failed(table.next(instance.self(), file, kMaxRows, &sink, &given)) || given.num_rows == 0) break;
      require(given.num_rows <= kMaxRows && given.num_bytes >= num_bytes);
      num_bytes = given.num_bytes;
    }
    table.close(instance.self(), file);
  }

  std::string path;
  fake::Host host;
  fake::Plugin plugin{host, &chassis_plugin_entry_v1};
  fake::Instance instance{host, plugin, "rows", "parquet", {}};
  const chassis_rows_t& table = instance.interface<chassis_rows_t>(CHASSIS_ROWS_ID);
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static Reader reader;
  std::ofstream(reader.path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(num_bytes));
  reader.read();
  return 0;
}
