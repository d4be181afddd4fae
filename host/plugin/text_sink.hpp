// A text sink for plugins: keeps the text that the plugin passes to it.
#pragma once

#include <string>
#include <utility>

#include "chassis/kind/model.h"
#include "host/plugin/status.hpp"

namespace chassis {

class TextSink {
 public:
  TextSink() {
    raw_.struct_size = sizeof raw_;
    raw_.impl = &text_;
    raw_.text = [](const chassis_text_sink_t* sink, chassis_str_t text) {
      *static_cast<std::string*>(sink->impl) = std::string(view_of(text));
    };
  }
  TextSink(const TextSink&) = delete;
  TextSink& operator=(const TextSink&) = delete;
  const chassis_text_sink_t* get() const { return &raw_; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  chassis_text_sink_t raw_{};
};

}  // namespace chassis
