// Answers requests in OpenAI's format: the server's thread reads them, the step thread computes the answers, many at
// once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "host/data/chat_renderer.hpp"
#include "host/generate/answer.hpp"
#include "host/serve/http_server.hpp"
#include "host/serve/serve_request.hpp"

namespace chassis {

struct ServiceOptions {
  ServedModel model;
  std::string api_key;       // empty: none is needed
  size_t num_running = 8;    // answers that are computed at once
  size_t num_waiting = 128;  // answers that may wait; further requests are refused
  std::string chat_refusal;  // why there is no renderer
};

class AnswerService {
 public:
  // The answerer outlives the object. Adds the renderer's stop ids to those of the answerer.
  AnswerService(Answerer& answerer, std::optional<ChatRenderer> renderer, ServiceOptions options);
  ~AnswerService();

  // For a server that ends before this object.
  HttpHandler handler();
  // [step] Answers requests until `is_over` returns true, which it is asked between two steps, and ten times a second
  // while there is nothing to do. Ends the answers that are unfinished then.
  void run(const std::function<bool()>& is_over);

 private:
  struct Job;
  struct Waiting {
    std::shared_ptr<Job> job;
    size_t index = 0;  // of the answer
  };

  std::optional<HttpResponse> answer_head(const HttpHead& head) const;
  std::shared_ptr<Job> read_job(bool is_chat, const std::string& body, std::shared_ptr<HttpReply> reply) const;
  std::vector<int32_t> ids_of(const Prompt& prompt) const;
  void enqueue(const std::shared_ptr<Job>& job);

  void wait_for_request();
  void begin_waiting();
  void begin(const Waiting& next);
  void end_answer(const std::shared_ptr<Job>& job, size_t index, Answer answer);
  // The step failed: ends the answers that it computed.
  void fail_running(const Error& error);
  void end_all();

  Answerer& answerer_;
  const std::optional<ChatRenderer> renderer_;
  const ServiceOptions options_;
  const int64_t started_at_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Waiting> waiting_;
  uint64_t num_requests_ = 0;
  bool is_ending_ = false;

  std::vector<std::shared_ptr<Job>> running_;  // used by the step thread alone
};

}  // namespace chassis
