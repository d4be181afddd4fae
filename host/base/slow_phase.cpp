// Timers that log a slow phase, and end the process after a signal.
#include "host/base/slow_phase.hpp"

#include <optional>
#include <utility>

#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kGrace{700};

}  // namespace

SlowPhase::SlowPhase(std::string what, std::chrono::milliseconds patience)
    : ticker_("slow phase", patience, [what = std::move(what)] {
        log::info("{} …", what);
        return false;
      }) {}

StopBeforeSteps::StopBeforeSteps(std::function<bool()> requested, bool is_logging)
    : ticker_("stop request", std::chrono::milliseconds(100),
              [requested = std::move(requested), is_logging, since = std::optional<Clock::time_point>()]() mutable {
                if (!requested()) return true;
                if (!since) since = Clock::now();
                if (Clock::now() - *since < kGrace) return true;
                if (is_logging) log::info("stopped before the first step; nothing was trained");
                log::flush();
                end_process(static_cast<int>(ExitCode::kStopped));
              }) {}

}  // namespace chassis
