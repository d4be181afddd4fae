// A line that a run answers: a request is accepted, its phases, and its end. A request that is refused, or answered at
// once, has only an end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/control/control_request.hpp"

namespace chassis {

// Outcomes of ends that the server of a run gives itself. A run gives others: "committed", "rolled back", "checked".
inline constexpr char kRefusedOutcome[] = "refused";
inline constexpr char kRolledBackOutcome[] = "rolled back";
inline constexpr char kRunEndedOutcome[] = "run ended";

// The phase of a swap in which `commit` and `rollback` are accepted: ControlServer::take() returns them too, and
// finish() ends both requests.
inline constexpr char kProbationPhase[] = "probation";

struct ControlReply {
  enum class Kind { kAccepted, kPhase, kEnd };

  Kind kind = Kind::kEnd;
  std::string id;           // of the request; "" if none could be read
  bool ok = true;           // of an end
  std::string name;         // the phase, or the outcome of an end
  std::string text;         // for people
  double ms = 0.0;          // since the request was accepted
  int64_t generation = -1;  // of the run, at the time of this reply
  Json facts = nullptr;     // an object, or null
};

Json control_json(const ControlReply& reply);
// Throws a config error if the line is no reply of this version.
ControlReply parse_control_reply(std::string_view line);

// The exit code of an operator's command: kOk, kConfig for a refusal, kRolledBack unless a rollback was asked for,
// kCommunication if the run ended first.
ExitCode control_exit_code(ControlVerb verb, const ControlReply& end);

}  // namespace chassis
