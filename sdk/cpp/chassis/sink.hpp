// The base of members that receive the metrics of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "chassis/kind/sink.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// chassis_run_page_t in C++: in Sink::start, keep RunPage(host(), *start.page). Functions throw if the files of the run
// cannot be read.
class RunPage {
 public:
  RunPage(const Host& host, const chassis_run_page_t& page) : host_(&host), page_(read_sized(&page)) {}

  // [any] A live page requests "events" and "data?since=STEP"; any other page requests nothing.
  std::string html(bool is_live = false) const {
    std::string text;
    host_->check(page_.html(page_.context, is_live ? 1 : 0, &append, &text));
    return text;
  }
  // [any] The answer to "data?since=STEP": what a page that has the steps up to `since` lacks.
  std::string data(int64_t since) const {
    std::string text;
    host_->check(page_.data(page_.context, since, &append, &text));
    return text;
  }

 private:
  static void append(void* context, chassis_str_t text) {
    static_cast<std::string*>(context)->append(text.ptr, static_cast<size_t>(text.len));
  }
  const Host* host_;
  chassis_run_page_t page_;
};

// All functions are called from one thread, which is not the thread of the step; they may block. Exceptions are shown
// and counted, and do not affect the run. See chassis/kind/sink.h for the order of calls and the meaning of the fields.
class Sink : public Member {
 public:
  static constexpr std::string_view kKind = "sink";
  using Member::Member;

  // [any]
  virtual void start(const chassis_sink_start_t& start) = 0;
  // [any] The measurements of one step or one evaluation.
  virtual void scalars(int64_t step, double time, std::span<const chassis_scalar_t> scalars) = 0;
  // [any] A sample, a checkpoint, a warning.
  virtual void text(const chassis_sink_text_t& /*text*/) {}
  // [any] Called when the queue is empty: what is buffered should become visible.
  virtual void flush() {}
  // [any]
  virtual void finish(const chassis_sink_finish_t& /*finish*/) {}

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr bool kTakesTexts = kOverridden<&Sink::text, &T::text>;
    static constexpr bool kFlushes = kOverridden<&Sink::flush, &T::flush>;
    static constexpr chassis_sink_t kTable = {sizeof(chassis_sink_t),
                                              0,
                                              &start_entry,
                                              &scalars_entry,
                                              kTakesTexts ? &text_entry : nullptr,
                                              kFlushes ? &flush_entry : nullptr,
                                              &finish_entry};
    return id == CHASSIS_SINK_ID ? &kTable : nullptr;
  }

 private:
  template <typename Body>
  static chassis_status_t* call(chassis_instance* self, Body&& body) noexcept {
    Sink& sink = member_of<Sink>(self);
    return guard(sink.host().table(), [&] { body(sink); });
  }
  static chassis_status_t* start_entry(chassis_instance* self, const chassis_sink_start_t* start) noexcept {
    return call(self, [&](Sink& sink) { sink.start(read_sized(start)); });
  }
  static chassis_status_t* scalars_entry(chassis_instance* self, const chassis_scalars_t* scalars) noexcept {
    return call(self, [&](Sink& sink) {
      const chassis_scalars_t all = read_sized(scalars);
      sink.scalars(all.step, all.time, {all.scalars, all.num_scalars});
    });
  }
  static chassis_status_t* text_entry(chassis_instance* self, const chassis_sink_text_t* text) noexcept {
    return call(self, [&](Sink& sink) { sink.text(read_sized(text)); });
  }
  static chassis_status_t* flush_entry(chassis_instance* self) noexcept {
    return call(self, [](Sink& sink) { sink.flush(); });
  }
  static chassis_status_t* finish_entry(chassis_instance* self, const chassis_sink_finish_t* finish) noexcept {
    return call(self, [&](Sink& sink) { sink.finish(read_sized(finish)); });
  }
};

CHASSIS_SDK_END
