// The lines of both directions: what is read back is what was written, and everything else is refused with its reason.
#include "host/control/control_request.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/control/control_reply.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

// The message of the config error, or "accepted".
std::string refusal_of(const std::string& line) {
  try {
    parse_control_request(line);
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig) << error.what();
    return error.what();
  }
}

std::string line_with(const std::string& members) { return R"({"control":1,"verb":"swap","id":"a",)" + members + "}"; }

TEST(ControlRequest, IsReadAsItWasWritten) {
  ControlRequest request;
  request.verb = ControlVerb::kSwap;
  request.id = "Op-1.a_b";
  request.generation = 7;
  request.set = {"attention.plugin=sdpa", "log.note="};
  request.file = "[a]\nb = \"世界\"\n";
  request.file_name = "/home/o/new.toml";
  request.plugins = {"adamw@2.0.0"};
  const std::string line = control_line(request);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const ControlRequest read = parse_control_request(line + "\n");
  EXPECT_EQ(read.verb, request.verb);
  EXPECT_EQ(read.id, request.id);
  EXPECT_EQ(read.generation, 7);
  EXPECT_EQ(read.set, request.set);
  EXPECT_EQ(read.file, request.file);
  EXPECT_EQ(read.file_name, request.file_name);
  EXPECT_EQ(read.plugins, request.plugins);
}

TEST(ControlRequest, HasEveryVerb) {
  for (const std::string& name : control_verb_names()) {
    ControlRequest request;
    request.verb = *control_verb_named(name);
    request.id = "a";
    if (name == "check" || name == "swap") request.set = {"a=b"};
    EXPECT_EQ(control_verb_name(parse_control_request(control_line(request)).verb), name);
  }
  EXPECT_FALSE(control_verb_named("stop"));
}

TEST(ControlRequest, RefusesAnotherVersionWithBothNumbers) {
  // A later version may have fields that this one does not know: the version is what is wrong.
  const std::string text = refusal_of(R"({"control":2,"verb":"x","later":true})");
  EXPECT_HAS(text, "version 2 of the control protocol; this release has version 1");
  EXPECT_HAS(refusal_of(R"({"verb":"status","id":"a"})"), "'control' is missing");
  EXPECT_HAS(refusal_of(R"({"control":"1","verb":"status","id":"a"})"), "'control' must be an integer, not string");
}

TEST(ControlRequest, RefusesMissingUnknownAndMistypedFields) {
  EXPECT_HAS(refusal_of(R"({"control":1,"id":"a"})"), "'verb' is missing");
  EXPECT_HAS(refusal_of(R"({"control":1,"verb":"status"})"), "'id' is missing");
  EXPECT_HAS(refusal_of(R"({"control":1,"verb":"stop","id":"a"})"), "unknown verb 'stop'");
  EXPECT_HAS(refusal_of(R"({"control":1,"verb":1,"id":"a"})"), "'verb' must be a string, not number");
  EXPECT_HAS(refusal_of(line_with(R"("sets":["a=b"])")), "unknown field 'sets'");
  EXPECT_HAS(refusal_of(line_with(R"("set":"a=b")")), "'set' must be a list of strings, not string");
  EXPECT_HAS(refusal_of(line_with(R"("set":[1])")), "'set' must be a list of strings, but has number");
  EXPECT_HAS(refusal_of(line_with(R"("plugins":{})")), "'plugins' must be a list of strings, not object");
  EXPECT_HAS(refusal_of(line_with(R"("file":["x"])")), "'file' must be a string, not array");
  EXPECT_HAS(refusal_of(line_with(R"("set":["a=b"],"generation":1.5)")), "'generation' must be an integer");
  EXPECT_HAS(refusal_of(line_with(R"("set":["a=b"],"generation":-2)")), "'generation' is -2");
  EXPECT_HAS(refusal_of(line_with(R"("set":["a=b"],"generation":18446744073709551615)")), "larger than a 64-bit");
  EXPECT_HAS(refusal_of(line_with(R"("set":["a=b"],"set":["a=c"])")), "duplicate key 'set'");
}

TEST(ControlRequest, RefusesContentsThatMakeNoSense) {
  EXPECT_HAS(refusal_of(line_with(R"("set":["a"])")), "'a' is not of the form KEY=VALUE");
  EXPECT_HAS(refusal_of(line_with(R"("set":["=a"])")), "'=a' is not of the form KEY=VALUE");
  EXPECT_HAS(refusal_of(line_with(R"("plugins":["adamw"])")), "'adamw' is not of the form ID@VERSION");
  EXPECT_HAS(refusal_of(line_with(R"("plugins":["adamw@"])")), "'adamw@' is not of the form ID@VERSION");
  EXPECT_HAS(refusal_of(line_with(R"("set":["a=b"],"file_name":"x.toml")")), "'file' is missing or empty");
  EXPECT_HAS(refusal_of(line_with(R"("set":[])")), "'swap' has nothing to change");
  EXPECT_HAS(refusal_of(R"({"control":1,"verb":"commit","id":"a","set":["a=b"]})"), "'commit' takes no changes");
  for (const char* id :
       {"", "a b", "\\u001b[0m", "ä", "0123456789012345678901234567890123456789012345678901234567890123x"})
    EXPECT_HAS(refusal_of(std::string(R"({"control":1,"verb":"status","id":")") + id + "\"}"), "'id' is '") << id;
}

TEST(ControlRequest, RefusesWhatIsNoLineOfJson) {
  EXPECT_HAS(refusal_of(""), "not valid JSON");
  EXPECT_HAS(refusal_of("[1]"), "expected an object, found array");
  EXPECT_HAS(refusal_of(R"({"control":1,"verb":"status","id":"a"} x)"), "not valid JSON");
  EXPECT_HAS(refusal_of("{\"control\":1,\"verb\":\"status\",\"id\":\"\xff\"}"), "the line is not UTF-8");
  EXPECT_HAS(refusal_of(std::string("\0\0\0", 3)), "a byte of value 0");
  EXPECT_HAS(refusal_of(std::string(100'000, '[')), "nested deeper than 64");
}

TEST(ControlRequest, HasAMaximumLength) {
  const std::string head = line_with("\"file\":\""), tail = "\"}";
  const std::string start = head.substr(0, head.size() - 1);
  const std::string longest = start + std::string(kMaxControlLineBytes - start.size() - tail.size(), 'x') + tail;
  EXPECT_EQ(refusal_of(longest + "\n"), "accepted");
  EXPECT_HAS(refusal_of(longest + " \n"), "a line of 1048577 bytes, maximum 1048576");
  ControlRequest request;
  request.verb = ControlVerb::kCheck;
  request.id = "a";
  request.file = std::string(kMaxControlLineBytes, 'x');
  EXPECT_THROW(control_line(request), Error);
}

TEST(ControlRequest, IsNotSentIfItWouldBeRefused) {
  ControlRequest request;
  request.verb = ControlVerb::kSwap;
  request.id = "a";
  EXPECT_THROW(control_line(request), Error);
  request.set = {"a=\xff"};
  EXPECT_THROW(control_line(request), Error);
  request.set = {"a=b"};
  EXPECT_NO_THROW(control_line(request));
}

TEST(ControlReplyLine, IsReadAsItWasWritten) {
  for (const auto kind : {ControlReply::Kind::kAccepted, ControlReply::Kind::kPhase, ControlReply::Kind::kEnd}) {
    ControlReply reply;
    reply.kind = kind;
    reply.id = "a";
    if (kind != ControlReply::Kind::kAccepted) reply.name = "create";
    reply.text = "two\nlines";
    reply.ok = kind != ControlReply::Kind::kEnd;
    reply.ms = 1.5;
    reply.generation = 3;
    reply.facts = {{"rank", 2}};
    const ControlReply read = parse_control_reply(json_line(control_json(reply)));
    EXPECT_EQ(json_line(control_json(read)), json_line(control_json(reply)));
    EXPECT_EQ(read.kind, kind);
    EXPECT_EQ(read.facts["rank"], 2);
  }
  EXPECT_THROW(parse_control_reply(R"({"control":1,"reply":"news","id":"","ms":0,"generation":0})"), Error);
  EXPECT_THROW(parse_control_reply(R"({"control":3,"reply":"end"})"), Error);
}

TEST(ControlReplyLine, HasTheExitCodeOfItsOutcome) {
  ControlReply end;
  end.name = "committed";
  EXPECT_EQ(control_exit_code(ControlVerb::kSwap, end), ExitCode::kOk);
  end.ok = false;
  end.name = "refused";
  EXPECT_EQ(control_exit_code(ControlVerb::kSwap, end), ExitCode::kConfig);
  end.name = "rolled back";
  EXPECT_EQ(control_exit_code(ControlVerb::kSwap, end), ExitCode::kRolledBack);
  EXPECT_EQ(control_exit_code(ControlVerb::kCommit, end), ExitCode::kRolledBack);
  EXPECT_EQ(control_exit_code(ControlVerb::kRollback, end), ExitCode::kOk);
  end.name = "run ended";
  EXPECT_EQ(control_exit_code(ControlVerb::kSwap, end), ExitCode::kCommunication);
}

}  // namespace
}  // namespace chassis
