// A format plugin made of two functions that the test supplies.
#pragma once

#include <functional>

#include "host/checkpoint/format_plugin.hpp"

namespace chassis::testing {

class ScriptedFormat {
 public:
  using LayoutScript = std::function<chassis_status_t*(const chassis_save_request_t&, const chassis_layout_sink_t&)>;
  using ScanScript = std::function<chassis_status_t*(const chassis_directory_t&, const chassis_scan_sink_t&)>;

  ScriptedFormat() : plugin("scripted", table_, &instance_) {
    instance_.impl = this;
    table_.struct_size = sizeof table_;
    table_.layout = [](chassis_instance* self, const chassis_save_request_t* r, const chassis_layout_sink_t* s) {
      return static_cast<ScriptedFormat*>(self->impl)->layout(*r, *s);
    };
    table_.scan = [](chassis_instance* self, const chassis_directory_t* d, const chassis_scan_sink_t* s) {
      return static_cast<ScriptedFormat*>(self->impl)->scan(*d, *s);
    };
  }
  LayoutScript layout;
  ScanScript scan;

 private:
  chassis_format_t table_{};
  chassis_instance_t instance_{};

 public:
  FormatPlugin plugin;
};

}  // namespace chassis::testing
