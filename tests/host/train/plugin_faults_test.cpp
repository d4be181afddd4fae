// Messages about plugins that end the process, print, hang or claim nothing.
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::Process;

class PluginFaults : public test::ProgramRun {
 protected:
  static std::vector<std::string> command(const std::string& verb, const std::vector<std::string>& words) {
    std::vector<std::string> all = {program(), verb, "run.toml", "run.max_steps=2", "kernels.plugins=unruly,reference"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--plugin-path", CHASSIS_TEST_STUB_DIR});
    return all;
  }
  Outcome run(const std::string& verb, const std::vector<std::string>& words) {
    return test::run_process(command(verb, words), scratch_.path());
  }
  static std::string fault(const std::string& name) { return "kernels.unruly.fault=\"" + name + "\""; }
};

constexpr const char* kCall = "provider 'unruly' in forward of layer.";

TEST_F(PluginFaults, AnExitInACallIsAnErrorOfThePlugin) {
  std::vector<const char*> ways = {"exit", "quick_exit", "_exit"};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  ways.pop_back();  // sanitizers replace _exit
#endif
  for (const char* name : ways) {
    const Outcome outcome = run("train", {fault(name)});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
    EXPECT_HAS(outcome.output, std::string("error: the process was ended by ") + name);
    EXPECT_HAS(outcome.output, kCall);
    EXPECT_HAS(outcome.output, ", step 1");
  }
}

TEST_F(PluginFaults, RanksThatChooseDifferentProvidersAreRefused) {
  const Outcome outcome = run("train", {fault("refuse on rank 1"), "parallel.0.plugin=ddp", "--nproc", "2"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_HAS(outcome.output, "the ranks differ in providers of nodes: 'kernels.layer.");
  EXPECT_HAS(outcome.output, "reference");
  EXPECT_HAS(outcome.output, "unruly");
}

TEST_F(PluginFaults, AnExitInAConstructorIsAnErrorOfThePlugin) {
  const Outcome outcome = run("check", {fault("exit when made")});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_HAS(outcome.output, "ended by exit(0) inside plugin 'unruly' 0.1.0 in create");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(PluginFaults, ACrashNamesPluginNodePhaseStepAndStack) {
  for (const auto& [name, signal] : {std::pair{"crash", SIGSEGV}, {"abort", SIGABRT}}) {
    const Outcome outcome = run("train", {fault(name)});
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.output;
    EXPECT_HAS(outcome.output,
               std::string("in the code of plugin 'unruly' 0.1.0 (") + CHASSIS_TEST_STUB_DIR + "/unruly.so)");
    EXPECT_HAS(outcome.output, std::string("call in progress: ") + kCall);
    EXPECT_HAS(outcome.output, ", step 1\n");
    EXPECT_HAS(outcome.output, "  stack, innermost first:\n");
  }
}

TEST_F(PluginFaults, ABadFunctionPointerAndAnExhaustedStackAreNamed) {
  for (const auto& [name, words] : {std::pair{"bad call", "SIGSEGV: call through a bad function pointer, to 0x10\n"},
                                    {"overflow", "SIGSEGV: the stack is exhausted (endless recursion"}}) {
    const Outcome outcome = run("train", {fault(name)});
    EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV) << outcome.output;
    EXPECT_HAS(outcome.output, std::string("error: ") + words);
    EXPECT_HAS(outcome.output, std::string("call in progress: ") + kCall);
    EXPECT_HAS(outcome.output, "in the code of plugin 'unruly' 0.1.0 (");
  }
}

TEST_F(PluginFaults, AnAbortInAConstructorOfALibraryNamesThePlugin) {
  const Outcome outcome = test::run_process(command("check", {}), scratch_.path(), {{"CHASSIS_TEST_ABORT", "1"}});
  EXPECT_EQ(outcome.exit_code, 128 + SIGABRT) << outcome.output;
  EXPECT_HAS(outcome.output, "error: SIGABRT\n  call in progress: plugin 'unruly' 0.1.0 in load\n");
}
#endif

TEST_F(PluginFaults, AnInvalidHandleOfAProviderIsAnErrorNotACrash) {
  const std::pair<const char*, const char*> faults[] = {
      {"lent handle",
       "output 0 is the handle of input 1, which is only lent; retain makes a handle that can be returned"},
      {"released handle", "which is not a handle that it holds: it was already released, or never was a handle"},
      {"one handle twice", "saved tensor 0 is a handle that it gave back before in the same call"},
      {"garbage handle", "output 0 is 0x1234, which is not a handle that it holds"},
      {"another handle", "output 0 is not the handle that the host gave it to write to"}};
  for (const auto& [name, words] : faults) {
    const Outcome outcome = run("train", {fault(name)});
    EXPECT_EQ(outcome.exit_code, 3) << name << "\n" << outcome.output;
    EXPECT_HAS(outcome.output, "error: provider 'unruly' on layer.");
    EXPECT_HAS(outcome.output, " in forward (unit 1), step 1: ");
    EXPECT_HAS(outcome.output, words);
  }
}

TEST_F(PluginFaults, AFailureWithoutAMessageOrAValidCodeNamesItsCall) {
  const std::pair<const char*, const char*> faults[] = {
      {"no message", " in forward (unit 1), step 1: no message, status UNAVAILABLE"},
      {"fails with OK", " in forward (unit 1), step 1: it went wrong (its status code: 0, which means OK)"},
      {"unknown status", " in forward (unit 1), step 1: it went wrong (its status code: 777, which is unknown)"}};
  for (const auto& [name, words] : faults) EXPECT_HAS(run("train", {fault(name)}).output, words);
}

TEST_F(PluginFaults, AnEmptyOutputNamesTheProvider) {
  const Outcome outcome = run("train", {fault("no output")});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_HAS(outcome.output, "error: provider 'unruly' on layer.");
}

TEST_F(PluginFaults, TheFirstInterruptOfAHangingCallIsReportedAndTheSecondEndsTheRun) {
  Process process(command("train", {fault("hang")}), scratch_.path());
  ASSERT_TRUE(process.wait_for("hanging")) << process.output_so_far();
  process.send(SIGINT);
  ASSERT_TRUE(process.wait_for(" s; still waiting, Ctrl-C ends the wait")) << process.output_so_far();
  EXPECT_HAS(process.output_so_far(), "SIGINT: stopping after step 1, which is in progress, and saving it");
  EXPECT_HAS(process.output_so_far(), std::string("warning: ") + kCall);
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_HAS(outcome.output, "SIGINT again: ended at once; nothing is saved\n");
}

TEST_F(PluginFaults, ACallThatDoesNotReturnIsReportedWithoutAnInterrupt) {
  const char* const variable = "CHASSIS_CALL_WATCH_S";
  Process process(command("train", {fault("hang")}), scratch_.path(), {{variable, "0.2"}});
  EXPECT_TRUE(process.wait_for(std::string("warning: ") + kCall)) << process.output_so_far();
  EXPECT_HAS(process.output_so_far(), " s; still waiting, Ctrl-C ends the wait");
  const Outcome refused = test::run_process(command("check", {}), scratch_.path(), {{variable, "-1"}});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_HAS(refused.output, "CHASSIS_CALL_WATCH_S=-1: expected seconds");
}

TEST_F(PluginFaults, TheFirstInterruptEndsACallThatHangsBeforeTheFirstStep) {
  Process process(command("train", {fault("hang when made")}), scratch_.path());
  ASSERT_TRUE(process.wait_for("hanging")) << process.output_so_far();
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_HAS(outcome.output, "SIGINT: stopping before the first step; Ctrl-C again ends at once\n");
  EXPECT_HAS(outcome.output, "stopped before the first step; nothing was trained");
}

TEST_F(PluginFaults, WhatAPluginPrintsStaysOutOfMachineReadableOutput) {
  std::string words;
  for (const std::string& word : command("plan", {"--json", "--world", "1", fault("print")}))
    words += "'" + word + "' ";
  const Outcome outcome =
      test::run_process({"/bin/sh", "-c", words + "> plan.json"}, scratch_.path(), {{"CHASSIS_TEST_PRINT", "1"}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NO_THROW(Json::parse(test::text_of_file(scratch_ / "plan.json")))
      << test::text_of_file(scratch_ / "plan.json");
  for (const char* line : {": a constructor says hello\n", ": a plugin says hello\n", ": and again\n",
                           "warning: a plugin or a library writes to standard output"})
    EXPECT_HAS(outcome.output, line);
}

TEST_F(PluginFaults, AProviderThatClaimsNothingIsCounted) {
  const Outcome outcome = run("train", {fault("refuse")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output,
             "warning: [kernels]: provider 'unruly' claims no node, so others compute all of them; "
             "it refuses add: its option fault says so");
  EXPECT_HAS(outcome.output, "providers that compute nothing: unruly (");
}

TEST_F(PluginFaults, AnUnknownOpInAPatternIsRefused) {
  const Outcome outcome = run("check", {"kernels.plugins=[\"misspelt\", \"reference\"]"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_HAS(outcome.output,
             "provider 'misspelt': pattern 'add+rms_nrom' names the op 'rms_nrom', which this host does not know");
}

TEST_F(PluginFaults, InfoDescribesAFileByItsPath) {
  std::filesystem::copy(CHASSIS_TEST_STUB_DIR "/unruly.so", scratch_ / "some.so");
  for (const char* path : {"some.so", "./some.so"}) {
    std::vector<std::string> words = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "plugins", "info", path};
    const Outcome note = test::run_process(words, scratch_.path());
    EXPECT_EQ(note.exit_code, 0) << note.output;
    EXPECT_HAS(note.output, "unruly 0.1.0\n");
    words.push_back("--options");
    const Outcome options = test::run_process(words, scratch_.path());
    EXPECT_HAS(options.output, "unruly 0.1.0\n");
    EXPECT_HAS(options.output, "fault = \"refuse\"");
  }
}

TEST_F(PluginFaults, APluginThatCannotBeLoadedStopsOnlyVerbsThatNeedIt) {
  std::string bytes = test::text_of_file(CHASSIS_TEST_PLUGIN_DIR "/sgd.so");
  for (size_t at; (at = bytes.find("libc.so.6")) != std::string::npos;) bytes.replace(at, 9, "libx.so.6");
  std::filesystem::create_directory(scratch_ / "own");
  test::write_text(scratch_ / "own/sgd.so", bytes);
  const auto chassis = [&](std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_TEST_BINARY_DIR "/bin/chassis");
    words.insert(words.end(), {"--plugin-path", "own"});
    return test::run_process(words, scratch_.path());
  };
  const Outcome schema = chassis({"schema", "optimizer"});
  EXPECT_EQ(schema.exit_code, 0) << schema.output;
  EXPECT_HAS(schema.output,
             "warning: left out: plugin 'sgd' 0.1.0 cannot be loaded: libx.so.6: cannot open shared object file");
  EXPECT_HAS(schema.output, "plugin \"adamw\" (optimizer)");
  const std::vector<std::string> good = {"check", "run.toml", "kernels.plugins=[\"reference\"]"};
  const Outcome check = chassis(good);
  EXPECT_EQ(check.exit_code, 0) << check.output;
  const Outcome chosen = chassis({"check", "run.toml", "kernels.plugins=[\"reference\"]", "optimizer.plugin=sgd"});
  EXPECT_EQ(chosen.exit_code, 3) << chosen.output;
  EXPECT_HAS(chosen.output, "plugin 'sgd' 0.1.0 cannot be loaded: libx.so.6: cannot open shared object file");
}

}  // namespace
}  // namespace chassis
