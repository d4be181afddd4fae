// Bodies of requests: what they become, and what is refused, with the name of the parameter.
#include "host/serve/serve_request.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

ServedModels model() {
  ServedModels made;
  made.names = {"tiny"};
  made.options.max_new_tokens = 40;
  made.options.seed = 42;
  made.options.vocab_size = 300;
  made.max_positions = 64;
  made.max_answers = 8;
  return made;
}

ServeRequest chat(const std::string& more, const ServedModels& served = model()) {
  return read_chat_request(R"({"messages": [{"role": "user", "content": "Hi"}])" + more + "}", served);
}
ServeRequest completion(const std::string& body, const ServedModels& served = model()) {
  return read_completion_request(body, served);
}

// "400 param code: message".
std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const RefusedRequest& refused) {
    return std::to_string(refused.status()) + " " + refused.param() + " " + refused.code() + ": " + refused.message();
  }
  return "accepted";
}
std::string chat_refusal(const std::string& more) {
  return refusal([&] { chat(more); });
}
std::string completion_refusal(const std::string& body) {
  return refusal([&] { completion(body); });
}

TEST(ServeRequest, SaysNothingButItsMessagesAndGetsTheDefaults) {
  const ServeRequest request = chat("");
  EXPECT_TRUE(request.is_chat);
  EXPECT_EQ(request.num_answers(), 1u);
  EXPECT_FALSE(request.streams || request.has_seed);
  EXPECT_EQ(request.options.max_new_tokens, 40);
  EXPECT_EQ(request.options.seed, 42u);
  const auto& record = std::get<ChatRecord>(request.prompts.at(0));
  ASSERT_EQ(record.messages.size(), 1u);
  EXPECT_EQ(record.messages[0].role, "user");
  EXPECT_EQ(record.messages[0].text(), "Hi");
}

TEST(ServeRequest, SetsWhatItNames) {
  const ServeRequest request = chat(
      R"(, "model": "tiny", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
      "repetition_penalty": 1.5, "stop": ["a", "b"], "seed": -7, "n": 3, "stream": true,
      "stream_options": {"include_usage": true}, "user": "me", "metadata": {"a": 1}, "store": false)");
  EXPECT_EQ(request.options.max_new_tokens, 5);
  EXPECT_EQ(request.options.sampling.temperature, 0.5);
  EXPECT_EQ(request.options.sampling.top_p, 0.9);
  EXPECT_EQ(request.options.sampling.top_k, 3);
  EXPECT_EQ(request.options.sampling.min_p, 0.1);
  EXPECT_EQ(request.options.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.stop_texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.options.seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(request.num_answers(), 3u);
  EXPECT_TRUE(request.streams && request.includes_usage);
  EXPECT_EQ(chat(R"(, "max_completion_tokens": 6, "stop": "x")").options.max_new_tokens, 6);
}

TEST(ServeRequest, AcceptsValuesThatChangeNothing) {
  for (const char* more :
       {R"(, "temperature": 0, "top_p": 1)", R"(, "frequency_penalty": 0, "presence_penalty": 0.0)",
        R"(, "logprobs": false, "logit_bias": {})", R"(, "response_format": {"type": "text"})",
        R"(, "temperature": 0, "top_p": 0.5)", R"(, "service_tier": "auto", "parallel_tool_calls": true)",
        R"(, "top_logprobs": 0, "prediction": null)", R"(, "tool_choice": "auto")",
        R"(, "logit_bias": null, "stop": null, "n": null, "seed": null)"})
    EXPECT_EQ(chat_refusal(more), "accepted") << more;
}

TEST(ServeRequest, RefusesWhatItCannotDoByName) {
  const std::pair<const char*, const char*> rows[] = {
      {R"(, "logprobs": true)", "400 logprobs unsupported_parameter: 'logprobs' is not supported"},
      {R"(, "logit_bias": {"5": 1})", "400 logit_bias unsupported_parameter"},
      {R"(, "frequency_penalty": 0.5)", "400 frequency_penalty unsupported_parameter"},
      {R"(, "presence_penalty": 1)", "400 presence_penalty unsupported_parameter"},
      {R"(, "response_format": {"type": "json_object"})", "400 response_format unsupported_parameter"},
      {R"(, "tool_choice": "required")", "400 tool_choice unsupported_parameter"},
      {R"(, "store": true)", "400 store unsupported_parameter"},
      {R"(, "temprature": 1)", "400 temprature unknown_parameter: unknown parameter 'temprature'"},
      {R"(, "prompt": "x")", "400 prompt unknown_parameter"},
      {R"(, "model": "other")", "404 model model_not_found: no model 'other' here; the one that is served is 'tiny'"},
      {R"(, "temperature": "hot")", "400 temperature invalid_type: 'temperature' must be a number, not string"},
      {R"(, "temperature": -1)", "400 temperature invalid_value: 'temperature' is -1, expected 0 to 100"},
      {R"(, "top_k": 5)", "400 top_k invalid_value: 'top_k' = 5 has no effect at temperature 0"},
      {R"(, "top_p": 0.5)", "400 top_p invalid_value"},
      {R"(, "service_tier": "flex")",
       "400 service_tier unsupported_parameter: 'service_tier' is not supported; what is accepted is \"auto\" and "
       "\"default\""},
      {R"(, "max_tokens": 0)", "400 max_tokens invalid_value"},
      {R"(, "max_tokens": 1.5)", "400 max_tokens invalid_type"},
      {R"(, "max_tokens": 3, "max_completion_tokens": 4)", "400 max_completion_tokens invalid_value"},
      {R"(, "seed": 18446744073709551615)", "400 seed invalid_value"},
      {R"(, "n": 9)", "400 n invalid_value: 'n' is 9, expected 1 to 8"},
      {R"(, "stop": "")", "400 stop invalid_value: 'stop' has an empty text"},
      {R"(, "stop": [1])", "400 stop invalid_type"},
      {R"(, "stop": ["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"])",
       "400 stop invalid_value: 'stop' has 17 texts, at most 16 are allowed"},
      {R"(, "stream_options": {"include_usage": true})", "400 stream_options invalid_value"},
      {R"(, "stream": true, "stream_options": {"other": 1})", "400 stream_options.other unknown_parameter"}};
  for (const auto& [more, message] : rows) EXPECT_HAS(chat_refusal(more), message) << more;
}

TEST(ServeRequest, ChoosesAnAdapterByItsName) {
  ServedModels several = model();
  several.names = {"tiny", "sql", "chat"};
  EXPECT_EQ(chat("", several).model, 0u);
  EXPECT_EQ(chat(R"(, "model": null)", several).model, 0u);
  EXPECT_EQ(chat(R"(, "model": "tiny")", several).model, 0u);
  EXPECT_EQ(completion(R"({"prompt": "a", "model": "chat"})", several).model, 2u);
  EXPECT_EQ(refusal([&] { chat(R"(, "model": "SQL")", several); }),
            "404 model model_not_found: no model 'SQL' here; those that are served are 'tiny', 'sql', 'chat'");
}

TEST(ServeRequest, ATemperatureOf0ReplacesTheSamplingOfTheConfiguration) {
  ServedModels sampling = model();
  sampling.options.sampling = {.temperature = 1.0, .top_k = 5, .top_p = 0.5};
  const ServeRequest request = chat(R"(, "temperature": 0)", sampling);
  EXPECT_EQ(request.options.sampling.temperature, 0.0);
  EXPECT_EQ(request.options.sampling.top_k, 0);
  EXPECT_EQ(request.options.sampling.top_p, 1.0);
  EXPECT_EQ(chat("", sampling).options.sampling.top_k, 5);
}

TEST(ServeRequest, MessagesAreReadLikeRowsOfTrainingData) {
  const auto read = [](const std::string& messages) {
    return read_chat_request("{\"messages\": " + messages + "}", model());
  };
  const ServeRequest parts = read(
      R"([{"role": "system", "content": "S"}, {"role": "user", "name": null, "content": [{"type": "text", "text": "a"},
          {"type": "text", "text": "b"}]}])");
  EXPECT_EQ(std::get<ChatRecord>(parts.prompts[0]).messages[1].text(), "ab");
  const std::pair<const char*, const char*> rows[] = {
      {"[]", "'messages' is empty"},
      {"\"Hi\"", "'messages' must be a list of messages, not string"},
      {"[1]", "'messages' must be a list of objects"},
      {R"([{"role": "user"}])", "neither \"content\" nor tool calls"},
      {R"([{"role": "user", "content": "x", "mood": "good"}])", "unknown key"},
      {R"([{"role": "user", "content": "x", "weight": 0}])", "belongs to training data"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "only parts with type \"text\" are read"},
      {R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])", "there is nothing to answer"}};
  for (const auto& [messages, message] : rows)
    EXPECT_HAS(refusal([&, given = messages] { read(given); }), message) << messages;
  const ServeRequest tools = chat(R"(, "tools": [{"type": "function", "function": {"name": "f"}}])");
  EXPECT_HAS(std::get<ChatRecord>(tools.prompts[0]).tools_json, "\"f\"");
}

TEST(ServeRequest, CompletionsTakeOneTextOrManyAsTextsOrIds) {
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt": "a"})").prompts.at(0)), "a");
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt": ["a", "b"]})").prompts.at(1)), "b");
  EXPECT_EQ(std::get<Ids>(completion(R"({"prompt": [1, 299]})").prompts.at(0)), (Ids{1, 299}));
  EXPECT_EQ(std::get<Ids>(completion(R"({"prompt": [[1], [2, 3]]})").prompts.at(1)), (Ids{2, 3}));
  EXPECT_EQ(completion(R"({"prompt": ["a", "b"], "n": 4})").num_answers(), 8u);
  const std::pair<const char*, const char*> rows[] = {
      {"{}", "400 prompt missing_parameter"},
      {R"({"prompt": []})", "'prompt' is empty"},
      {R"({"prompt": {}})", "400 prompt invalid_type"},
      {R"({"prompt": ["a", [1]]})", "400 prompt invalid_type"},
      {R"({"prompt": [1, "a"]})", "400 prompt invalid_type"},
      {R"({"prompt": [300]})", "'prompt' is 300, expected 0 to 299"},
      {R"({"prompt": [-1]})", "'prompt' is -1, expected 0 to 299"},
      {R"({"prompt": ["a", "b", "c"], "n": 3})", "3 prompts with 3 answers each are 9 answers, at most 8"},
      {R"({"prompt": ["1", "2", "3", "4", "5", "6", "7", "8", "9"]})", "'prompt' has 9 texts, at most 8"},
      {R"({"prompt": "a", "echo": true})", "400 echo unsupported_parameter"},
      {R"({"prompt": "a", "messages": []})", "400 messages unknown_parameter"}};
  for (const auto& [body, message] : rows) EXPECT_HAS(completion_refusal(body), message) << body;
}

TEST(ServeRequest, RefusesWhatIsNotJsonWithItsPlace) {
  EXPECT_HAS(completion_refusal("{\"prompt\":\n \"a\",}"), "400  invalid_json: body:2:");
  EXPECT_HAS(completion_refusal(""), "400  invalid_json");
  EXPECT_HAS(completion_refusal("[1]"), "the body must be a JSON object, not array");
  EXPECT_HAS(completion_refusal(R"({"prompt": "a", "prompt": "b"})"), "duplicate key 'prompt'");
  EXPECT_HAS(completion_refusal("{\"prompt\": \"\xff\"}"), "invalid_json");
  std::string deep = "{\"prompt\": ";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_HAS(completion_refusal(deep), "nested deeper than 64");
}

TEST(ServeRequest, AnAnswerEndsWithThePositionsOfTheModel) {
  EXPECT_EQ(room_for_answer(model(), 10, 5), 5);
  EXPECT_EQ(room_for_answer(model(), 60, 5), 5);
  EXPECT_EQ(room_for_answer(model(), 64, 5), 1) << "the last token is not an input";
  EXPECT_HAS(refusal([] { room_for_answer(model(), 65, 5); }), "the prompt has 65 tokens");
  EXPECT_HAS(refusal([] { room_for_answer(model(), 70, 5); }),
             "400 prompt context_length_exceeded: the prompt has 70 tokens, which leaves no room for an answer in 64 "
             "positions");
  EXPECT_HAS(refusal([] { room_for_answer(model(), 0, 5); }), "the prompt is empty");
  EXPECT_HAS(completion_refusal("{\"prompt\": \"" + std::string(10'000, 'x') + "\"}"),
             "400 prompt context_length_exceeded: the prompt has 10000 bytes, too many for 64 positions");
}

}  // namespace
}  // namespace chassis
