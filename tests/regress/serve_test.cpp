// `chassis serve` with a model that has learned four short conversations: its answers are those of `chassis generate`,
// whoever else asks, and what cannot be answered is refused.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/regress/memorized_chats.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loopback.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::vector<std::string> chassis(const std::vector<std::string>& words) {
  std::vector<std::string> all = {CHASSIS_PROGRAM};
  all.insert(all.end(), words.begin(), words.end());
  all.insert(all.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR, "--plugin-path", CHASSIS_TEST_STUB_DIR});
  return all;
}

struct Response {
  int status = 0;
  std::string head, body;
  Json json() const { return Json::parse(body); }
  std::string error() const { return json()["error"]["message"]; }
};

Response response_of(const std::string& text) {
  const size_t end = text.find("\r\n\r\n");
  if (end == text.npos) return {};
  return {std::stoi(text.substr(9, 3)), text.substr(0, end), text.substr(end + 4)};
}

// The program while it serves what is in a folder. Its output is in a folder of its own, with links to those files.
class Served {
 public:
  Served(const ScratchDirectory& folder, const std::vector<std::string>& words)
      : process_(chassis(with_free_port(words)), linked(folder), {}, Process::Start::kWarm) {
    EXPECT_TRUE(process_.wait_for("Ctrl-C ends")) << process_.output_so_far();
    const std::string output = process_.output_so_far();
    if (output.find("127.0.0.1:") != output.npos) port_ = fake::port_in(output);
  }

  Response get(const std::string& path, const std::string& fields = "") const {
    return ask("GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + fields + "\r\n");
  }
  Response post(const std::string& path, const std::string& body, const std::string& fields = "") const {
    return ask(request_text(path, body, fields));
  }
  static std::string request_text(const std::string& path, const std::string& body, const std::string& fields = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + fields +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  Response chat(const std::string& user, const Json& more = Json::object()) const {
    Json body = {{"model", "tiny"}, {"messages", Json::array({message("user", user)})}};
    body.update(more);
    return post("/v1/chat/completions", body.dump());
  }
  Response complete(const Json& body) const { return post("/v1/completions", body.dump()); }
  Response ask(const std::string& text) const { return response_of(fake::answer_of(port_, text)); }

  uint16_t port() const { return port_; }
  Process& process() { return process_; }

 private:
  const std::string& linked(const ScratchDirectory& folder) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      if (entry.path().filename() != "output.txt")
        std::filesystem::create_symlink(entry.path(), place_ / entry.path().filename().string());
    return place_.path();
  }
  static std::vector<std::string> with_free_port(std::vector<std::string> words) {
    words.insert(words.begin(), "serve");
    words.insert(words.end(), {"--port", "0"});
    return words;
  }

  ScratchDirectory place_;
  Process process_;
  uint16_t port_ = 0;
};

// The data of the events of a stream.
std::vector<std::string> events_of(const Response& response) {
  std::vector<std::string> events;
  for (size_t at = 0; at < response.body.size();) {
    const size_t end = response.body.find("\n\n", at);
    EXPECT_EQ(response.body.substr(at, 6), "data: ");
    if (end == std::string::npos) break;
    events.push_back(response.body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

const char* const kPrompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello";
const Json kDrawn = {{"temperature", 2.0}, {"top_k", 50}, {"seed", 5}, {"max_tokens", 20}};

// The model is trained once for all tests, and most of them share one server.
class Serve : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new ScratchDirectory;
    write_memorized_run(*folder_, memorized_run("[generate]\nmax_new_tokens = 40\n", "name = \"tiny\"\n",
                                                "max_position_embeddings = 512\n"));
    std::string prompts;
    for (const auto& [user, assistant] : kTurns)
      prompts += Json({{"messages", Json::array({message("user", user)})}}).dump() + "\n";
    prompts += Json({{"prompt", kPrompt}}).dump() + "\n";
    write_text(*folder_ / "prompts.jsonl", prompts);
    run({"train", "run.toml"});
    answers_ = answers_of("base", {"run.toml"});
    ASSERT_EQ(answers_.size(), kTurns.size() + 1);
    server_ = new Served(*folder_, {"run.toml", "generate.batch_size=3"});
    ASSERT_GT(server_->port(), 0);
  }
  static void TearDownTestSuite() {
    delete std::exchange(server_, nullptr);
    delete std::exchange(folder_, nullptr);
  }

  static void run(const std::vector<std::string>& words) {
    const Outcome outcome = run_process(chassis(words), folder_->path());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  // The answers of `generate` to the turns, and to a prompt.
  static std::vector<Json> answers_of(const std::string& name, std::vector<std::string> words) {
    const std::string file = name + "-answers.jsonl";
    words.insert(words.begin(), "generate");
    words.insert(words.end(), {"--prompts", "prompts.jsonl", "--out", file});
    run(words);
    std::vector<Json> answers;
    std::istringstream lines(text_of_file(*folder_ / file));
    for (std::string line; std::getline(lines, line);) answers.push_back(Json::parse(line));
    EXPECT_EQ(answers.size(), kTurns.size() + 1);
    return answers;
  }

  static ScratchDirectory* folder_;
  static Served* server_;
  static std::vector<Json> answers_;
};
ScratchDirectory* Serve::folder_ = nullptr;
Served* Serve::server_ = nullptr;
std::vector<Json> Serve::answers_;

TEST_F(Serve, AnswersAreThoseOfGenerate) {
  for (size_t i = 0; i < kTurns.size(); ++i) {
    const Response response = server_->chat(kTurns[i].first);
    ASSERT_EQ(response.status, 200) << response.body;
    const Json made = response.json();
    EXPECT_EQ(made["choices"][0]["message"]["content"], answers_[i]["answer"]);
    EXPECT_EQ(made["choices"][0]["message"]["content"], kTurns[i].second);
    EXPECT_EQ(made["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(made["usage"]["prompt_tokens"], answers_[i]["prompt_tokens"]);
    EXPECT_EQ(made["usage"]["completion_tokens"], answers_[i]["answer_tokens"]);
  }
  EXPECT_EQ(server_->complete({{"prompt", kPrompt}}).json()["choices"][0]["text"], answers_.back()["answer"]);
  EXPECT_EQ(server_->chat("Hi", {{"max_tokens", 5}}).json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(server_->chat("Hi", {{"stop", "o t"}}).json()["choices"][0]["message"]["content"], "Hell");
}

TEST_F(Serve, CompletionsTakeManyTextsOrIds) {
  const Json texts = server_->complete({{"prompt", {"Hi", "Bye"}}, {"max_tokens", 6}}).json();
  const Json ids = server_->complete({{"prompt", {{72, 105}, {66, 121, 101}}}, {"max_tokens", 6}}).json();
  ASSERT_EQ(texts["choices"].size(), 2u) << texts;
  EXPECT_EQ(texts["choices"], ids["choices"]);
  EXPECT_EQ(texts["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(server_->complete({{"prompt", {66, 121, 101}}, {"max_tokens", 6}}).json()["choices"][0]["text"],
            texts["choices"][1]["text"]);
}

TEST_F(Serve, RequestsAtOnceGetTheAnswersThatTheyGetAlone) {
  const auto ask = [&](size_t i) {
    Json more = i % 2 == 0 ? Json::object() : kDrawn;
    return server_->chat(kTurns[i % kTurns.size()].first, more).json()["choices"].dump();
  };
  std::vector<std::string> alone;
  for (size_t i = 0; i < 8; ++i) alone.push_back(ask(i));
  std::vector<std::future<std::string>> together;
  for (size_t i = 0; i < 8; ++i) together.push_back(std::async(std::launch::async, ask, i));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(together[i].get(), alone[i]);
}

TEST_F(Serve, ASeedDrawsTheSameAnswersAndNAnswersDiffer) {
  Json three = kDrawn;
  three["n"] = 3;
  const Json first = server_->chat("Hi", three).json(), second = server_->chat("Hi", three).json();
  EXPECT_EQ(first["choices"], second["choices"]);
  ASSERT_EQ(first["choices"].size(), 3u);
  EXPECT_NE(first["choices"][0]["message"], first["choices"][1]["message"]);
  EXPECT_EQ(server_->chat("Hi", kDrawn).json()["choices"][0], first["choices"][0]);
  three.erase("seed");
  EXPECT_NE(server_->chat("Hi", three).json()["choices"], server_->chat("Hi", three).json()["choices"]);
}

TEST_F(Serve, AStreamHasThePiecesOfTheAnswer) {
  const Response response = server_->chat("2+2?", {{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(response.status, 200);
  EXPECT_HAS(response.head, "text/event-stream");
  const std::vector<std::string> events = events_of(response);
  ASSERT_GT(events.size(), 4u) << response.body;
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json choice = Json::parse(events[i])["choices"][0];
    text += choice["delta"].value("content", "");
    EXPECT_EQ(choice["finish_reason"].is_null(), i + 3 < events.size());
  }
  EXPECT_EQ(text, "Four,\nI think.");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], answers_[2]["answer_tokens"]);

  Json drawn = kDrawn;
  drawn["prompt"] = "Hi";
  const std::string whole = server_->complete(drawn).json()["choices"][0]["text"];
  drawn["stream"] = true;
  std::string joined;
  for (const std::string& event : events_of(server_->complete(drawn)))
    if (event != "[DONE]") joined += Json::parse(event)["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(joined, whole);
}

TEST_F(Serve, WhatCannotBeAnsweredIsRefusedWithItsReason) {
  const auto expect = [](const Response& response, int status, const std::string& message) {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_HAS(response.body, message);
  };
  expect(server_->chat("Hi", {{"model", "other"}}), 404, "the one that is served is 'tiny'");
  expect(server_->chat("Hi", {{"logprobs", true}}), 400, "'logprobs' is not supported");
  expect(server_->chat("Hi", {{"temprature", 1}}), 400, "unknown parameter 'temprature'");
  expect(server_->chat(std::string(600, 'x')), 400, "which leaves no room for an answer in 512 positions");
  expect(server_->complete({{"prompt", ""}}), 400, "the prompt is empty");
  expect(server_->complete({{"prompt", {999}}}), 400, "'prompt' is 999, expected 0 to");
  expect(server_->post("/v1/completions", "{\"prompt\": }"), 400, "body:1:");
  expect(server_->post("/v1/completions", std::string(100'000, '[')), 400, "nested deeper than 64");
  expect(server_->post("/v1/completions", std::string(5 << 20, 'x')), 413, "at most 4194304 bytes");
  expect(server_->post("/v1/embeddings", "{}"), 404, "no '/v1/embeddings' here");
  expect(server_->get("/v1/completions"), 405, "takes POST");
  expect(server_->ask("POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"), 415, "application/json");
  expect(server_->ask("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403, "127.0.0.1 and localhost");
  expect(server_->get("/v1/models", "X: " + std::string(20'000, 'x') + "\r\n"), 431, "at most 8192 bytes");
  expect(server_->get("/health"), 200, "ok");
  EXPECT_EQ(server_->get("/v1/models").json()["data"][0]["id"], "tiny");
  EXPECT_EQ(server_->get("/v1/models/tiny").json()["id"], "tiny");
  EXPECT_EQ(server_->get("/v1/models/other").status, 404);
}

TEST_F(Serve, AClientThatLeavesEndsItsAnswersAndOthersGoOn) {
  // Hundreds of random tokens in each answer.
  const Json body = {{"prompt", "a"}, {"temperature", 100}, {"n", 10}, {"max_tokens", 500}, {"stream", true}};
  const auto begin = Clock::now();
  for (int i = 0; i < 10; ++i)
    EXPECT_HAS(fake::answer_of(server_->port(), Served::request_text("/v1/completions", body.dump()), "data: "),
               "200 OK");
  EXPECT_EQ(server_->chat("Hi").json()["choices"][0]["message"]["content"], "Hello there!");
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST_F(Serve, AKeyIsNeededAndSigtermEndsAnswersThatAreUnfinished) {
  write_text(*folder_ / "key", "secret-1\n");
  Served served(*folder_, {"run.toml", "generate.batch_size=1", "--api-key-file", "key"});
  const std::string right = "Authorization: Bearer secret-1\r\n";
  EXPECT_EQ(served.get("/health").status, 200);
  EXPECT_EQ(served.get("/v1/models").status, 401);
  EXPECT_EQ(served.get("/v1/models", "Authorization: Bearer secret-2\r\n").status, 401);
  EXPECT_EQ(served.get("/v1/models", "Authorization: secret-1\r\n").status, 401);
  EXPECT_EQ(served.get("/v1/models", right).status, 200);

  const Json body = {{"prompt", "a"}, {"temperature", 100}, {"n", 128}, {"max_tokens", 500}, {"stream", true}};
  const std::string text = Served::request_text("/v1/completions", body.dump(), right);
  const int file = fake::connection_to(served.port());
  ASSERT_EQ(send(file, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  std::string got;
  char some[4096];
  const auto receive = [&] {
    const ssize_t count = recv(file, some, sizeof some, 0);
    if (count > 0) got.append(some, static_cast<size_t>(count));
    return count > 0;
  };
  while (got.find("data: ") == got.npos && receive()) {
  }
  const Json more = {{"prompt", "a"}, {"n", 20}};
  const Response full = served.post("/v1/completions", more.dump(), right);
  EXPECT_EQ(full.status, 429) << full.body;
  EXPECT_HAS(full.body, "answers are waiting");

  const auto begin = Clock::now();
  served.process().send(SIGTERM);
  while (receive()) {
  }
  close(file);
  EXPECT_HAS(got, "data: {\"error\":{\"message\":\"the server is ending\"");
  const Outcome outcome = served.process().wait();
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "SIGTERM: ended");
}

TEST_F(Serve, ADirectoryOfARunOrOfAModelIsServedAndSigintEnds) {
  {
    Served run(*folder_, {"out"});
    EXPECT_EQ(run.chat("Hi").json()["choices"][0]["message"]["content"], "Hello there!");
    const auto begin = Clock::now();
    run.process().send(SIGINT);
    EXPECT_EQ(run.process().wait().exit_code, 0);
    EXPECT_LT(Clock::now() - begin, 2s);
  }
  Served model(*folder_, {"out/final", "tokenizer.plugin=words", "tokenizer.path=tokenizer", "data.template=chatml"});
  EXPECT_EQ(model.get("/v1/models").json()["data"][0]["id"], "final");
  EXPECT_EQ(model.chat("Hi", {{"model", "final"}}).json()["choices"][0]["message"]["content"], "Hello there!");
}

TEST_F(Serve, AModelWithoutATemplateContinuesTextsAndOneThatOverflowsFailsRequestsOnly) {
  std::filesystem::copy(*folder_ / "out/final", *folder_ / "huge", std::filesystem::copy_options::recursive);
  std::filesystem::remove(*folder_ / "huge/manifest.json");
  for (const auto& entry : std::filesystem::directory_iterator(*folder_ / "huge")) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = text_of_file(entry.path().string());
    for (size_t i = 1; i <= 256; ++i) bytes[bytes.size() - i] = "\x7f\x7f\xff\xff"[(i - 1) % 4];  // the largest f32
    write_text(entry.path().string(), bytes);
  }
  Served served(*folder_, {"huge", "tokenizer.plugin=bytes", "tokenizer.force=true"});
  const Response chat = served.chat("Hi", {{"model", "huge"}});
  EXPECT_EQ(chat.status, 400);
  EXPECT_HAS(chat.error(), "chats cannot be answered");
  for (int i = 0; i < 2; ++i) {
    const Response failed = served.complete({{"prompt", "Hi"}});
    EXPECT_EQ(failed.status, 500) << failed.body;
    EXPECT_EQ(failed.json()["error"]["type"], "server_error");
    EXPECT_EQ(served.get("/health").status, 200);
  }
}

TEST_F(Serve, OneProcessServesAndAPortInUseIsRefused) {
  ScratchDirectory other;
  const std::string toml = *folder_ / "run.toml";
  const Outcome ranks = run_process(chassis({"serve", toml, "--nproc", "2"}), other.path());
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_HAS(ranks.output, "serve runs in one process, and --nproc asks for 2");
  const std::string port = std::to_string(server_->port());
  const Outcome taken =
      run_process(chassis({"serve", toml, "--port", port, "tokenizer.path=" + *folder_ / "tokenizer"}), other.path());
  EXPECT_EQ(taken.exit_code, 2) << taken.output;
  EXPECT_HAS(taken.output, "port " + port + " of 127.0.0.1: Address already in use");
}

// Two adapters over the model of the other tests, which differ in rank, targets and the modules that they hold.
class ServeAdapters : public Serve {
 protected:
  static void SetUpTestSuite() {
    Serve::SetUpTestSuite();
    train("one", {"Ahoy", "A ship", "4", "Fair winds"}, "rank = 8, alpha = 32");
    train("two", {"No", "Guess", "5?", "Stay"},
          "rank = 4, alpha = 16, targets = [\"q_proj\", \"v_proj\"], modules_to_save = [\"lm_head\"]");
    const std::string base = "model={ path = \"out/final\" }";
    expected_["tiny"] = answers_;
    expected_["one"] = answers_of("one", {"run.toml", base, "--from", "one/final"});
    expected_["two"] = answers_of("two", {"run.toml", base, "--from", "two/final"});
    run({"ckpt", "merge", "two", "--out", "merged"});
    merged_ = answers_of("merged", {"run.toml", "--from", "merged"});
    adapters_ = new Served(
        *folder_, {"out", "generate.batch_size=3", "--lora", "one=one/final", "--lora", "two=two", "--log-requests"});
    ASSERT_GT(adapters_->port(), 0);
  }
  static void TearDownTestSuite() {
    delete std::exchange(adapters_, nullptr);
    Serve::TearDownTestSuite();
  }

  static void train(const std::string& name, const std::vector<std::string>& replies, const std::string& adapter) {
    std::string chats;
    for (size_t i = 0; i < kTurns.size(); ++i)
      chats += Json({{"messages", {message("user", kTurns[i].first), message("assistant", replies[i])}}}).dump() + "\n";
    write_text(*folder_ / (name + ".jsonl"), chats);
    run({"train", "run.toml", "model={ path = \"out/final\" }", "adapter={ plugin = \"lora\", " + adapter + " }",
         "run.output_dir=" + name, "data.train.0.path=" + name + ".jsonl", "run.max_steps=60"});
  }
  static Json choice(const std::string& model, size_t turn) {
    return adapters_->chat(kTurns[turn].first, {{"model", model}}).json()["choices"][0];
  }
  static std::string refusal(const std::vector<std::string>& words) {
    std::vector<std::string> all = {"serve", "--port", "0"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run_process(chassis(all), folder_->path());
    EXPECT_NE(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }

  static Served* adapters_;
  static std::map<std::string, std::vector<Json>> expected_;
  static std::vector<Json> merged_;
};
Served* ServeAdapters::adapters_ = nullptr;
std::map<std::string, std::vector<Json>> ServeAdapters::expected_;
std::vector<Json> ServeAdapters::merged_;

TEST_F(ServeAdapters, EachAnswersAsGenerateDoesWithIt) {
  for (const auto& [model, answers] : expected_) {
    for (size_t i = 0; i < kTurns.size(); ++i) EXPECT_EQ(choice(model, i)["message"]["content"], answers[i]["answer"]);
    const Json text = adapters_->complete({{"model", model}, {"prompt", kPrompt}}).json();
    EXPECT_EQ(text["choices"][0]["text"], answers.back()["answer"]);
    EXPECT_EQ(text["model"], model);
  }
  for (size_t i = 0; i < kTurns.size(); ++i) {
    EXPECT_EQ(expected_["two"][i]["answer"], merged_[i]["answer"]);
    EXPECT_NE(expected_["one"][i]["answer"], expected_["two"][i]["answer"]);
    EXPECT_NE(expected_["one"][i]["answer"], answers_[i]["answer"]);
  }
  EXPECT_EQ(adapters_->complete({{"prompt", kPrompt}}).json()["choices"][0]["text"], answers_.back()["answer"]);
}

TEST_F(ServeAdapters, RequestsAtOnceGetTheAnswersOfTheirModel) {
  const std::vector<std::string> models = {"tiny", "one", "two"};
  std::vector<std::future<Json>> together;
  for (size_t i = 0; i < 12; ++i)
    together.push_back(std::async(std::launch::async, [=] { return choice(models[i % 3], i / 3); }));
  for (size_t i = 0; i < 12; ++i)
    EXPECT_EQ(together[i].get()["message"]["content"], expected_[models[i % 3]][i / 3]["answer"]) << i;
}

// The answers of one model fill all places, and 100 of its answers wait.
TEST_F(ServeAdapters, AModelDoesNotWaitForAllAnswersOfAnother) {
  const Json flood = {{"model", "one"}, {"prompt", "a"},     {"temperature", 100},
                      {"n", 100},       {"max_tokens", 200}, {"stream", true}};
  const std::string text = Served::request_text("/v1/completions", flood.dump());
  const int file = fake::connection_to(adapters_->port());
  ASSERT_EQ(send(file, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  size_t num_ended = 0;
  std::string got;
  char some[4096];
  const auto receive = [&](int flags) {
    const ssize_t count = recv(file, some, sizeof some, flags);
    if (count > 0) got.append(some, static_cast<size_t>(count));
    return count > 0;
  };
  while (got.find("data: ") == got.npos && receive(0)) {
  }
  EXPECT_EQ(choice("two", 0)["message"]["content"], expected_["two"][0]["answer"]);
  while (receive(MSG_DONTWAIT)) {
  }
  close(file);
  for (size_t at = 0; (at = got.find("\"finish_reason\":\"", at)) != got.npos; ++at) ++num_ended;
  EXPECT_LT(num_ended, 20u) << "the answer of 'two' waited for those of 'one'";
}

TEST_F(ServeAdapters, AreListedUnderTheirBase) {
  const Json models = adapters_->get("/v1/models").json()["data"];
  ASSERT_EQ(models.size(), 3u) << models;
  EXPECT_TRUE(models[0]["parent"].is_null());
  EXPECT_EQ(models[1]["id"], "one");
  EXPECT_EQ(models[2]["id"], "two");
  EXPECT_EQ(models[2]["parent"], "tiny");
  EXPECT_EQ(adapters_->get("/v1/models/two").json(), models[2]);
  const Response unknown = adapters_->chat("Hi", {{"model", "three"}});
  EXPECT_EQ(unknown.status, 404);
  EXPECT_HAS(unknown.error(), "no model 'three' here; those that are served are 'tiny', 'one', 'two'");
}

TEST_F(ServeAdapters, ALineOfTheLogHasNoTextOfTheRequest) {
  Json stream = {{"model", "two"}, {"prompt", "Confidential"}, {"max_tokens", 3}, {"stream", true}};
  EXPECT_EQ(adapters_->complete(stream).status, 200);
  ASSERT_TRUE(adapters_->process().wait_for("POST /v1/completions 200, ")) << adapters_->process().output_so_far();
  ASSERT_TRUE(adapters_->process().wait_for("s, model two, 12 tokens answered with ")) << "words has ids of bytes";
  adapters_->get("/v1/models?x=Confidential");
  EXPECT_TRUE(adapters_->process().wait_for("GET /v1/models 200, "));
  EXPECT_EQ(adapters_->process().output_so_far().find("Confidential"), std::string::npos);
}

TEST_F(ServeAdapters, TakeMemoryForWhatTheyHaveOfTheirOwn) {
  // A and B of rank 8 in fp32, for the projections of 2 layers: q and o, k and v, and three of the MLP.
  const int num_bytes = 4 * 2 * 8 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128));
  ASSERT_EQ(num_bytes, 64 << 10);
  EXPECT_HAS(adapters_->process().output_so_far(), "adapter 'one' of one/final has 64 KiB in addition to the ");
}

TEST_F(ServeAdapters, AreRefusedByNameBeforeAnyWeightIsRead) {
  EXPECT_HAS(refusal({"out", "--lora", "one"}), "--lora 'one' is not of the form NAME=DIR");
  EXPECT_HAS(refusal({"out", "--lora", "one="}), "--lora 'one=' is not of the form NAME=DIR");
  EXPECT_HAS(refusal({"out", "--lora", "a b=one/final"}), "visible ASCII characters and no spaces");
  EXPECT_HAS(refusal({"out", "--lora", "one=one/final", "--lora", "one=two"}),
             "--lora names two adapters 'one': one/final and two");
  EXPECT_HAS(refusal({"out", "--lora", "tiny=one/final"}), "--lora tiny=one/final: 'tiny' is the name of the base");
  EXPECT_HAS(refusal({"out", "--lora", "one=absent"}), "--lora one=absent: 'absent' has no adapter_config.json");
  EXPECT_HAS(refusal({"out", "--lora", "one=out/final"}),
             "--lora one=out/final: 'out/final' has no adapter_config.json");
  EXPECT_HAS(refusal({"one", "--lora", "two=two"}), "this base has one");

  std::filesystem::copy(*folder_ / "one/final", *folder_ / "dora");
  std::filesystem::remove(*folder_ / "dora/manifest.json");
  Json config = Json::parse(text_of_file(*folder_ / "dora/adapter_config.json"));
  config["use_dora"] = true;
  write_text(*folder_ / "dora/adapter_config.json", config.dump());
  EXPECT_HAS(refusal({"out", "--lora", "one=dora"}), "DoRA is not supported here");
  config["use_dora"] = false;
  config["r"] = 7;
  write_text(*folder_ / "dora/adapter_config.json", config.dump());
  const std::string shapes = refusal({"out", "--lora", "one=dora"});
  EXPECT_HAS(shapes, "--lora one=dora: ");
  EXPECT_HAS(shapes, "[8, 64]");
  EXPECT_HAS(shapes, "[7, 64]");
  EXPECT_EQ(shapes.find("loaded "), std::string::npos) << shapes;
}

TEST_F(ServeAdapters, AnotherBaseIsAWarning) {
  std::filesystem::copy(*folder_ / "one/final", *folder_ / "other");
  std::filesystem::remove(*folder_ / "other/manifest.json");
  Json config = Json::parse(text_of_file(*folder_ / "other/adapter_config.json"));
  config["base_model_name_or_path"] = "org/Another";
  write_text(*folder_ / "other/adapter_config.json", config.dump());
  Served served(*folder_, {"out", "--lora", "one=other"});
  EXPECT_HAS(served.process().output_so_far(), "base_model_name_or_path is org/Another, the base is out/final");
  EXPECT_EQ(adapters_->process().output_so_far().find("base_model_name_or_path"), std::string::npos);
  EXPECT_EQ(served.chat("Hi", {{"model", "one"}}).json()["choices"][0]["message"]["content"],
            expected_["one"][0]["answer"]);
}

}  // namespace
}  // namespace chassis::test
