// A request becomes a job, whose answers wait, are computed and are written one by one.
#include "host/serve/answer_service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "chassis/http.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/unix_time.hpp"
#include "host/generate/chat.hpp"
#include "host/serve/serve_response.hpp"

namespace chassis {
namespace {

constexpr std::chrono::milliseconds kIdleWait{100};
constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kCompletionPath = "/v1/completions";
constexpr const char* kModelsPath = "/v1/models";
constexpr const char* kHealthPath = "/health";

HttpResponse error_response(int status, const std::string& message, const std::string& param = "",
                            const std::string& code = "", std::string fields = "") {
  return {status, error_json(status, message, param, code), std::move(fields)};
}

bool has_key(const HttpHead& head, const std::string& key) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = head.authorization;
  return is_same_ignoring_case(given.substr(0, kScheme.size()), kScheme) &&
         is_same_secret(given.substr(kScheme.size()), key);
}

std::string whole_text(const Error& error) {
  return error.message() + (error.hint_text().empty() ? "" : "; " + error.hint_text());
}

}  // namespace

struct AnswerService::Job {
  ServeRequest request;
  std::shared_ptr<HttpReply> reply;
  ResponseWriter writer;
  std::vector<std::vector<int32_t>> ids = {};  // of each prompt
  std::vector<int64_t> room = {};              // tokens of an answer to each prompt
  std::vector<Answer> answers = {};
  size_t num_left = 0;
  uint64_t number = 0;
  bool has_failed = false;

  void fail(const HttpResponse& response) {
    has_failed = true;
    reply->answer(response);
  }
};

AnswerService::AnswerService(std::vector<Answerer*> answerers, std::optional<ChatRenderer> renderer,
                             ServiceOptions options)
    : renderer_(std::move(renderer)), options_(std::move(options)), started_at_(static_cast<int64_t>(unix_time())) {
  CHASSIS_CHECK(answerers.size() == options_.models.names.size(), "each model has an answerer");
  for (Answerer* const answerer : answerers) {
    if (renderer_) answerer->add_stop_ids(renderer_->stop_ids());
    models_.push_back({answerer});
  }
}

AnswerService::~AnswerService() = default;

HttpHandler AnswerService::handler() {
  HttpHandler handler;
  handler.on_head = [this](const HttpHead& head) { return answer_head(head); };
  handler.on_request = [this](const HttpHead& head, const std::string& body, const std::shared_ptr<HttpReply>& reply) {
    try {
      enqueue(read_job(head.path == kChatPath, body, reply));
    } catch (const RefusedRequest& refused) {
      reply->answer(error_response(refused.status(), refused.message(), refused.param(), refused.code(),
                                   refused.status() == 429 ? "Retry-After: 1\r\n" : ""));
    } catch (const Error& error) {  // a template that refuses the conversation, for example
      if (error.code() != ExitCode::kConfig) throw;
      reply->answer(error_response(400, whole_text(error)));
    }
  };
  handler.error_body = [](int status, const std::string& message) { return error_json(status, message); };
  if (options_.logs_requests)
    handler.on_end = [](const HttpHead& head, const HttpReply& reply, std::chrono::steady_clock::duration time) {
      const int status = reply.status();
      log::info("{} {} {}, {:.2f} s{}{}", head.method.empty() ? "?" : printable(head.method, 20),
                head.path.empty() ? "?" : printable(head.path, 200), status > 0 ? std::to_string(status) : "no answer",
                std::chrono::duration<double>(time).count(), reply.description(),
                reply.has_ended() ? "" : ", the client has gone");
    };
  return handler;
}

std::optional<HttpResponse> AnswerService::answer_head(const HttpHead& head) const {
  const bool is_post = head.path == kChatPath || head.path == kCompletionPath;
  const std::vector<std::string>& names = options_.models.names;
  const std::string folder = std::string(kModelsPath) + "/";
  const auto one =
      head.path.starts_with(folder) ? std::ranges::find(names, head.path.substr(folder.size())) : names.end();
  const bool is_one_model = one != names.end();
  const bool is_get = head.path == kModelsPath || head.path == kHealthPath || is_one_model;
  if (head.path != kHealthPath && !options_.api_key.empty() && !has_key(head, options_.api_key))
    return error_response(401, "the key is missing or wrong: send 'Authorization: Bearer KEY'", "", "invalid_api_key",
                          "WWW-Authenticate: Bearer\r\n");
  if (!is_post && !is_get)
    return error_response(404, fmt::format("no '{}' here; there are {}, {}, {} and {}", printable(head.path, 200),
                                           kChatPath, kCompletionPath, kModelsPath, kHealthPath));
  if (head.method != (is_post ? "POST" : "GET"))
    return error_response(405, fmt::format("{} takes {}", head.path, is_post ? "POST" : "GET"), "", "",
                          is_post ? "Allow: POST\r\n" : "Allow: GET\r\n");
  if (head.path == kHealthPath) return HttpResponse{200, R"({"status":"ok"})"};
  if (is_one_model) return HttpResponse{200, model_json(names, static_cast<size_t>(one - names.begin()), started_at_)};
  if (head.path == kModelsPath) return HttpResponse{200, models_json(names, started_at_)};
  // A page of another site can send any other type without asking first.
  const std::string_view type = std::string_view(head.content_type).substr(0, head.content_type.find(';'));
  if (!is_same_ignoring_case(type.substr(0, type.find_last_not_of(" \t") + 1), "application/json"))
    return error_response(415, "send 'Content-Type: application/json'");
  return std::nullopt;
}

std::shared_ptr<AnswerService::Job> AnswerService::read_job(bool is_chat, const std::string& body,
                                                            std::shared_ptr<HttpReply> reply) const {
  ServeRequest request =
      is_chat ? read_chat_request(body, options_.models) : read_completion_request(body, options_.models);
  const std::string& name = options_.models.names[request.model];
  reply->describe(", model " + printable(name, 200));
  ResponseWriter writer(is_chat, request.streams && request.includes_usage, name, static_cast<int64_t>(unix_time()));
  auto job = std::make_shared<Job>(Job{std::move(request), std::move(reply), std::move(writer)});
  for (const Prompt& prompt : job->request.prompts) {
    job->ids.push_back(ids_of(prompt));
    job->room.push_back(room_for_answer(options_.models, job->ids.back().size(), job->request.options.max_new_tokens));
  }
  job->num_left = job->request.num_answers();
  job->answers.resize(job->num_left);
  return job;
}

std::vector<int32_t> AnswerService::ids_of(const Prompt& prompt) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) return models_.front().answerer->ids_of_text(*text);
  if (!renderer_)
    throw RefusedRequest(400,
                         fmt::format("chats cannot be answered: {}; {} continues texts, and 'chassis serve … "
                                     "data.template=NAME' chooses a template",
                                     options_.chat_refusal, kCompletionPath),
                         "messages", "no_chat_template");
  return ids_of_chat(*models_.front().answerer, *renderer_, std::get<ChatRecord>(prompt));
}

void AnswerService::enqueue(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) throw RefusedRequest(503, "the server is ending");
    std::deque<Waiting>& waiting = models_[job->request.model].waiting;
    if (waiting.size() + job->num_left > options_.num_waiting)
      std::erase_if(waiting, [](const Waiting& one) { return !one.job->reply->is_open(); });
    if (waiting.size() + job->num_left > options_.num_waiting)
      throw RefusedRequest(429,
                           fmt::format("{} answers are waiting, and with the {} of this request there would be more "
                                       "than {}; try again later",
                                       waiting.size(), job->num_left, options_.num_waiting),
                           "", "rate_limit_exceeded");
    job->number = num_requests_++;
    for (size_t i = 0; i < job->answers.size(); ++i) waiting.push_back({job, i});
  }
  arrived_.notify_one();
}

void AnswerService::run(const std::function<bool()>& is_over) {
  while (!is_over()) {
    begin_waiting();
    if (num_running() == 0) {
      wait_for_request();
      continue;
    }
    for (Model& model : models_)
      if (model.answerer->num_running() > 0) step(model);
  }
  end_all();
}

void AnswerService::step(Model& model) {
  try {
    model.answerer->step();
  } catch (...) {
    const Error error = current_error();
    fail_running(model, error);
    if (error.code() != ExitCode::kNumeric && error.code() != ExitCode::kOutOfMemory) throw;
  }
}

size_t AnswerService::num_running() const {
  size_t count = 0;
  for (const Model& model : models_) count += model.answerer->num_running();
  return count;
}

bool AnswerService::has_waiting() const {
  return std::ranges::any_of(models_, [](const Model& model) { return !model.waiting.empty(); });
}

void AnswerService::wait_for_request() {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, kIdleWait, [&] { return has_waiting(); });
}

std::optional<AnswerService::Waiting> AnswerService::take_waiting() {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < models_.size(); ++i) {
    Model& model = models_[(next_model_ + i) % models_.size()];
    if (model.waiting.empty()) continue;
    next_model_ = (next_model_ + i + 1) % models_.size();
    Waiting next = std::move(model.waiting.front());
    model.waiting.pop_front();
    return next;
  }
  return std::nullopt;
}

void AnswerService::begin_waiting() {
  while (num_running() < options_.num_running) {
    const std::optional<Waiting> next = take_waiting();
    if (!next) return;
    try {
      begin(*next);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig) throw;
      next->job->fail(error_response(400, whole_text(error)));
    }
  }
}

void AnswerService::begin(const Waiting& next) {
  const std::shared_ptr<Job> job = next.job;
  const size_t index = next.index;
  if (job->has_failed || !job->reply->is_open()) return;
  const size_t prompt = index / job->request.answers_per_prompt, choice = index % job->request.answers_per_prompt;
  AnswerRequest request;
  request.prompt = job->ids[prompt];
  request.stream =
      job->request.has_seed ? fmt::format("serve/seed/{}", choice) : fmt::format("serve/{}/{}", job->number, index);
  request.continues_text = !job->request.is_chat;
  request.options = job->request.options;
  request.options->max_new_tokens = job->room[prompt];
  request.stop_texts = job->request.stop_texts;
  request.on_text = [job, index](std::string_view text) {
    return job->request.streams ? job->reply->add_event(job->writer.text_event(index, text)) : job->reply->is_open();
  };
  Model& model = models_[job->request.model];
  model.answerer->begin(std::move(request),
                        [this, job, index](Answer answer) { end_answer(job, index, std::move(answer)); });
  if (std::ranges::find(model.running, job) == model.running.end()) model.running.push_back(job);
  if (job->request.streams && job->request.is_chat) job->reply->add_event(job->writer.begin_event(index));
}

void AnswerService::end_answer(const std::shared_ptr<Job>& job, size_t index, Answer answer) {
  const ServeRequest& request = job->request;
  job->answers[index] = std::move(answer);
  if (request.streams) job->reply->add_event(job->writer.end_event(index, job->answers[index].finish_reason));
  if (--job->num_left > 0 && job->reply->is_open()) return;
  std::erase(models_[request.model].running, job);
  if (!job->reply->is_open()) return;
  const TokenCounts counts = token_counts(job->answers, request.answers_per_prompt);
  job->reply->describe(fmt::format(", model {}, {} tokens answered with {}",
                                   printable(options_.models.names[request.model], 200), counts.prompt, counts.answer));
  if (!request.streams) return job->reply->answer({200, job->writer.whole(job->answers, request.answers_per_prompt)});
  if (request.includes_usage) job->reply->add_event(job->writer.usage_event(job->answers, request.answers_per_prompt));
  job->reply->add_event("[DONE]");
  job->reply->end();
}

void AnswerService::fail_running(Model& model, const Error& error) {
  log::error("{} requests failed: {}", model.running.size(), error.what());
  model.answerer->drop_all();
  for (const auto& job : model.running) job->fail(error_response(500, whole_text(error)));
  model.running.clear();
}

void AnswerService::end_all() {
  const HttpResponse response = error_response(503, "the server is ending");
  const std::lock_guard lock(mutex_);
  is_ending_ = true;
  for (Model& model : models_) {
    for (const Waiting& one : model.waiting) one.job->fail(response);
    model.waiting.clear();
    model.answerer->drop_all();
    for (const auto& job : model.running) job->fail(response);
    model.running.clear();
  }
}

}  // namespace chassis
