// Calls a sink as the host does.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "chassis/kind/sink.h"
#include "tests/support/fake_host.hpp"

namespace fake {

using Scalars = std::vector<std::pair<std::string, double>>;

class SinkRun {
 public:
  SinkRun(Host& host, const std::string& library, const std::string& id,
          std::map<std::string, std::string> options = {})
      : host_(host), plugin_(host, library), instance_(host, plugin_, "sink", id, std::move(options)) {}

  void start(const std::string& folder, int64_t first_step = 0) {
    chassis_sink_start_t raw{};
    raw.struct_size = sizeof raw;
    raw.run_name = str("run");
    raw.output_dir = str(folder);
    raw.config = str("{}");
    raw.first_step = first_step;
    raw.max_steps = 100;
    raw.time = 1.7e9;
    raw.page = &page_;
    host_.check(table_.start(instance_.self(), &raw));
  }
  void scalars(int64_t step, const Scalars& values) {
    std::vector<chassis_scalar_t> list;
    for (const auto& [name, value] : values) list.push_back({str(name), value});
    chassis_scalars_t raw{sizeof raw, static_cast<uint32_t>(list.size()), step, 1.7e9 + static_cast<double>(step),
                          list.data()};
    host_.check(table_.scalars(instance_.self(), &raw));
  }
  void text(int64_t step, const std::string& name, const std::string& text) {
    chassis_sink_text_t raw{sizeof raw, CHASSIS_TEXT_SAMPLE, step, 1.7e9 + static_cast<double>(step), str(name),
                            str(text)};
    host_.check(table_.text(instance_.self(), &raw));
  }
  void flush() { host_.check(table_.flush(instance_.self())); }
  void finish(int64_t step) {
    chassis_sink_finish_t raw{sizeof raw, CHASSIS_RUN_DONE, step, 1.7e9 + static_cast<double>(step), 0};
    host_.check(table_.finish(instance_.self(), &raw));
  }

 private:
  using Write = void (*)(void*, chassis_str_t);
  static chassis_status_t* html(void*, uint32_t is_live, Write write, void* to) {
    return write(to, str(is_live ? "<!doctype html>" : "not live")), nullptr;
  }
  static chassis_status_t* data(void*, int64_t since, Write write, void* to) {
    const std::string text = "{\"since\":" + std::to_string(since) + "}";
    return write(to, str(text)), nullptr;
  }

  const chassis_run_page_t page_{sizeof page_, 0, nullptr, &html, &data};
  Host& host_;
  Plugin plugin_;
  Instance instance_;
  const chassis_sink_t& table_ = instance_.interface<chassis_sink_t>(CHASSIS_SINK_ID);
};

}  // namespace fake
