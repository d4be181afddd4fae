// Answers requests in OpenAI's format: the server's thread reads them, the step thread computes the answers, many at
// once. Requests choose between a base and its adapters by name; the answers of each model are computed together.
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
  ServedModels models;
  std::string api_key;         // empty: none is needed
  size_t num_running = 8;      // answers of all models that are computed at once
  size_t num_waiting = 128;    // answers of one model that may wait; further requests are refused
  std::string chat_refusal;    // why there is no renderer
  bool logs_requests = false;  // a line for each, without its text
};

class AnswerService {
 public:
  // One answerer for each name of options.models, with one tokenizer for all; they outlive the object. Adds the
  // renderer's stop ids to those of the answerers.
  AnswerService(std::vector<Answerer*> answerers, std::optional<ChatRenderer> renderer, ServiceOptions options);
  ~AnswerService();

  // For a server that ends before this object.
  HttpHandler handler();
  // [step] Answers requests until `is_over` returns true, which it is asked before each round of steps, one of each
  // model with answers to compute, and ten times a second while there is nothing to do. Ends the answers that are
  // unfinished then. Of models that have answers waiting, each in turn begins one.
  void run(const std::function<bool()>& is_over);

 private:
  struct Job;
  struct Waiting {
    std::shared_ptr<Job> job;
    size_t index = 0;  // of the answer
  };
  struct Model {
    Answerer* answerer;
    std::deque<Waiting> waiting = {};
    std::vector<std::shared_ptr<Job>> running = {};  // used by the step thread alone
  };

  std::optional<HttpResponse> answer_head(const HttpHead& head) const;
  std::shared_ptr<Job> read_job(bool is_chat, const std::string& body, std::shared_ptr<HttpReply> reply) const;
  std::vector<int32_t> ids_of(const Prompt& prompt) const;
  void enqueue(const std::shared_ptr<Job>& job);

  size_t num_running() const;
  bool has_waiting() const;
  void wait_for_request();
  std::optional<Waiting> take_waiting();
  void begin_waiting();
  void step(Model& model);
  void begin(const Waiting& next);
  void end_answer(const std::shared_ptr<Job>& job, size_t index, Answer answer);
  // The step failed: ends the answers that it computed.
  static void fail_running(Model& model, const Error& error);
  void end_all();

  const std::optional<ChatRenderer> renderer_;
  const ServiceOptions options_;
  const int64_t started_at_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Model> models_;  // by the names of options_.models
  size_t next_model_ = 0;      // the first that may begin an answer
  uint64_t num_requests_ = 0;
  bool is_ending_ = false;
};

}  // namespace chassis
