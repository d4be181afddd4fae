// Bodies of responses, read back as JSON.
#include "host/serve/serve_response.hpp"

#include <gtest/gtest.h>

#include "host/base/json.hpp"

namespace chassis {
namespace {

Json read(const std::string& text) { return parse_json(text, "response"); }

const std::vector<Answer> kAnswers = {{"a", "stop", 10, 1}, {"bc", "length", 10, 2}};

TEST(ServeResponse, AWholeOneHasAChoiceForEachAnswerAndCountsAPromptOnce) {
  const ResponseWriter chat(/*is_chat=*/true, false, "tiny", 7);
  const Json made = read(chat.whole(kAnswers, 2));
  EXPECT_EQ(made["object"], "chat.completion");
  EXPECT_EQ(made["model"], "tiny");
  EXPECT_EQ(made["created"], 7);
  EXPECT_EQ(made["choices"][1]["index"], 1);
  EXPECT_EQ(made["choices"][1]["message"], Json({{"role", "assistant"}, {"content", "bc"}}));
  EXPECT_EQ(made["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(made["usage"], Json({{"prompt_tokens", 10}, {"completion_tokens", 3}, {"total_tokens", 13}}));
  const ResponseWriter texts(/*is_chat=*/false, false, "tiny", 7);
  EXPECT_EQ(read(texts.whole(kAnswers, 1))["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(read(texts.whole(kAnswers, 1))["choices"][0]["text"], "a");
}

TEST(ServeResponse, EventsOfAStreamShareAnId) {
  const ResponseWriter chat(/*is_chat=*/true, /*includes_usage=*/true, "tiny", 7);
  const Json begin = read(chat.begin_event(1)), text = read(chat.text_event(1, "x")),
             end = read(chat.end_event(1, "stop"));
  EXPECT_EQ(begin["object"], "chat.completion.chunk");
  EXPECT_EQ(begin["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(text["choices"][0]["delta"], Json({{"content", "x"}}));
  EXPECT_TRUE(text["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(text.contains("usage") && text["usage"].is_null());
  EXPECT_EQ(end["choices"][0]["delta"], Json::object());
  EXPECT_EQ(end["choices"][0]["finish_reason"], "stop");
  const Json usage = read(chat.usage_event(kAnswers, 2));
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["total_tokens"], 13);
  for (const Json& event : {text, end, usage}) EXPECT_EQ(event["id"], begin["id"]);
}

TEST(ServeResponse, AdaptersHaveTheBaseAsTheirParent) {
  const std::vector<std::string> names = {"tiny", "sql", "chat"};
  const Json models = read(models_json(names, 7));
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 3u);
  EXPECT_EQ(models["data"][0],
            Json({{"id", "tiny"}, {"object", "model"}, {"created", 7}, {"owned_by", "chassis"}, {"parent", nullptr}}));
  EXPECT_EQ(models["data"][2]["id"], "chat");
  EXPECT_EQ(models["data"][2]["parent"], "tiny");
  EXPECT_EQ(read(model_json(names, 1, 7)), models["data"][1]);
}

TEST(ServeResponse, AnErrorHasTheFourKeysOfOpenAi) {
  EXPECT_EQ(read(error_json(404, "no", "model", "model_not_found")),
            read(R"({"error": {"message": "no", "type": "invalid_request_error", "param": "model",
                     "code": "model_not_found"}})"));
  EXPECT_EQ(read(error_json(500, "x"))["error"]["type"], "server_error");
  EXPECT_TRUE(read(error_json(500, "x"))["error"]["param"].is_null());
}

}  // namespace
}  // namespace chassis
