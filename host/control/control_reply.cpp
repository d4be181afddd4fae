#include "host/control/control_reply.hpp"

#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr const char* kReply = "reply";

}  // namespace

Json control_json(const ControlReply& reply) {
  Json message = {{"control", kControlVersion}};
  switch (reply.kind) {
    case ControlReply::Kind::kAccepted:
      message["reply"] = "accepted";
      message["id"] = reply.id;
      break;
    case ControlReply::Kind::kPhase:
      message["reply"] = "phase";
      message["id"] = reply.id;
      message["phase"] = reply.name;
      break;
    case ControlReply::Kind::kEnd:
      message["reply"] = "end";
      message["id"] = reply.id;
      message["ok"] = reply.ok;
      message["outcome"] = reply.name;
      break;
  }
  if (!reply.text.empty()) message["text"] = reply.text;
  message["ms"] = reply.ms;
  message["generation"] = reply.generation;
  if (!reply.facts.is_null()) message["facts"] = reply.facts;
  return message;
}

ControlReply parse_control_reply(std::string_view line) {
  const Json message = parse_json(line, kReply);
  check_control_version(message, kReply);
  ControlReply reply;
  const std::string kind = json_string(message, "reply", kReply);
  if (kind == "accepted") {
    reply.kind = ControlReply::Kind::kAccepted;
  } else if (kind == "phase") {
    reply.kind = ControlReply::Kind::kPhase;
    reply.name = json_string(message, "phase", kReply);
  } else if (kind == "end") {
    reply.ok = json_bool(message, "ok", kReply);
    reply.name = json_string(message, "outcome", kReply);
  } else {
    throw config_error(std::string(kReply) + ": unknown kind '" + printable(kind) + "'");
  }
  reply.id = json_string(message, "id", kReply);
  reply.text = json_string_or(message, "text", "", kReply);
  reply.ms = json_number(message, "ms", kReply);
  reply.generation = json_int(message, "generation", kReply);
  if (const auto facts = message.find("facts"); facts != message.end()) reply.facts = *facts;
  return reply;
}

ExitCode control_exit_code(ControlVerb verb, const ControlReply& end) {
  if (end.name == kRolledBackOutcome) return verb == ControlVerb::kRollback ? ExitCode::kOk : ExitCode::kRolledBack;
  if (end.name == kRunEndedOutcome) return ExitCode::kCommunication;
  return end.ok ? ExitCode::kOk : ExitCode::kConfig;
}

}  // namespace chassis
