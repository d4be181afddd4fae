// The first process of each machine writes, since machines may have caches of their own; all then read what it wrote.
#include "host/session/reference_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "host/base/creation_limit.hpp"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/progress.hpp"
#include "host/base/units.hpp"
#include "host/data/store_key.hpp"
#include "host/service/step_place.hpp"
#include "host/session/fields.hpp"
#include "host/session/reference_key.hpp"
#include "host/session/reference_model.hpp"
#include "host/session/sequence_values.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The files of one set that are kept; docs/preference.md has it.
constexpr size_t kMaxKept = 3;
// The micro-batches of a rank that are exchanged and written together: enough to keep the stages of a pipeline busy.
constexpr int kBlockBatches = 16;
// How long a new file of another machine may stay invisible in a shared folder.
constexpr auto kVisibleWithin = 90s;

struct Set {
  const RowSource& rows;
  std::function<EvalData()> read_once;
  std::function<void(std::shared_ptr<const ReferenceStore>)> take;
  Json key = {};
  std::string prefix = {}, path = {};
  std::shared_ptr<const ReferenceStore> kept = nullptr;

  const std::string& name() const { return rows.config().path; }
};

// The order of blocks and of what they hold. Other orders give other blocks, so they are not continued.
Json order_of(const Session& session) {
  const Settings& settings = session.settings();
  const Ranks ranks = session.ranks();
  return {{"block", kBlockBatches},
          {"micro_batch_size", *settings.train.micro_batch_size},
          {"ranks", ranks.num_data_ranks()},
          {"seq_len", *settings.train.seq_len},
          {"packing", settings.data.packing.is_set() ? to_text(*settings.data.packing) : ""},
          {"shuffle", *settings.data.shuffle},
          {"seed", *settings.run.seed}};
}

// Files have other inodes on other machines, so all ranks use the key of rank 0.
Json shared_model_key(Session& session, Purpose purpose) {
  World& world = session.world();
  std::string text;
  world.run_and_agree("reading the files of the reference", [&] {
    if (world.rank() == 0) text = reference_model_key(session, purpose).dump();
  });
  return Json::parse(world.exchange("key of the reference", text)[0]);
}

class Precomputation {
 public:
  Precomputation(Session& session, TrainData* train, const std::vector<std::unique_ptr<EvalData>>& eval)
      : session_(session),
        world_(session.world()),
        ranks_(session.ranks()),
        desc_(session.objective()->desc()),
        purpose_(reference_purpose(session)) {
    for (size_t i = 0; train != nullptr && i < train->sets().size(); ++i)
      sets_.push_back({.rows = train->sets()[i],
                       .read_once = [train, i] { return EvalData(train->sets()[i], train->config()); },
                       .take = [train, i](auto store) { train->set_reference(i, std::move(store)); }});
    for (const auto& set : eval)
      sets_.push_back({.rows = set->source(),
                       .read_once = [&data = *set] { return data.read_once(); },
                       .take = [&data = *set](auto store) { data.set_reference(std::move(store)); }});
  }

  std::string operator()(const std::function<void()>& fill) {
    const Json model = shared_model_key(session_, purpose_);
    for (Set& set : sets_) {
      set.key = reference_key(model, set.rows, desc_, session_.settings().train.seq_len);
      set.prefix = store_folder(set.rows.config(), cache_dir()) + ".reference-";
      set.path = set.prefix + reference_hash(set.key);
    }
    if (!find_kept()) {
      fill();
      for (Set& set : sets_) {
        if (!set.kept && &first_of(set) == &set) compute(set);
        set.kept = first_of(set).kept;
      }
    }
    for (const Set& set : sets_) set.take(set.kept);
    return reference_hash(model);
  }

 private:
  const std::string& cache_dir() const { return session_.settings().data.cache_dir; }
  bool is_first_on_machine() const { return world_.launch().local_rank == 0; }

  // Training and evaluation may read the same data, whose values are in one file.
  const Set& first_of(const Set& set) const { return *std::ranges::find(sets_, set.path, &Set::path); }

  // Opens what is kept. A set keeps it only if all ranks can. Returns true if nothing is missing.
  bool find_kept() {
    std::string mine;
    world_.run_and_agree("reading values of the reference", [&] {
      for (Set& set : sets_) {
        set.kept = &first_of(set) == &set ? open_kept(set) : first_of(set).kept;
        mine += set.kept ? '1' : '0';
      }
    });
    bool all_kept = true;
    for (const std::string& found : world_.exchange("kept values of the reference", mine))
      for (size_t i = 0; i < sets_.size(); ++i)
        if (found.at(i) == '0') sets_[i].kept = nullptr;
    for (const Set& set : sets_) {
      all_kept = all_kept && set.kept;
      if (set.kept && &first_of(set) == &set)
        log::info("reference: {} units of {} from {}", set.kept->num_documents(), set.name(), set.path);
    }
    return all_kept;
  }

  std::shared_ptr<const ReferenceStore> open_kept(const Set& set) const {
    if (path_kind_nofollow(set.path) == PathKind::kAbsent) {
      say_what_changed(set);
      return nullptr;
    }
    try {
      auto store = std::make_shared<const ReferenceStore>(set.path, set.key, set.rows.store().num_documents());
      if (is_first_on_machine()) {
        const CreationLimit limit(mode_of(set));  // permissions of the sources may have been reduced since then
        apply_creation_limit(set.path);
        mark_used(set.path);
      }
      return store;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStorage) throw;
      if (is_first_on_machine())
        counted_warning("reference.damaged " + set.name(),
                        fmt::format("the reference of {} is computed again: {}", set.name(), error.message()));
      return nullptr;
    }
  }

  void say_what_changed(const Set& set) const {
    for (const std::string& path : kept_references(set.prefix)) {
      const std::optional<Json> key = path.ends_with(".unfinished") ? std::nullopt : key_of_reference(path);
      if (!key) continue;
      log::info("the reference of {} is computed again, since its key is {} and no longer {}: {}", set.name(),
                reference_hash(set.key), reference_hash(*key), key_difference(*key, set.key));
      return;
    }
  }

  unsigned mode_of(const Set& set) const {
    return shared_read_mode(set.rows.store().source_files()) & reference_file_mode(session_.settings());
  }

  template <class Action>
  void in_cache(const Action& action) const {
    try {
      action();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStorage || error.hint_text() == ReferenceWriter::kDirectoryHint) throw;
      throw Error(error.code(), error.where(), error.message())
          .hint(
              fmt::format("the values of the reference are kept in data.cache_dir = \"{}\": free some space there, or "
                          "name a folder that you may write to",
                          cache_dir()));
    }
  }

  // The first process of a machine writes, unless rank 0 writes the same file in a shared folder.
  struct Output {
    std::optional<ReferenceWriter> writer;
    uint64_t num_blocks = 0;  // that every writer has
  };
  void open_output(const Set& set, Output& output) {
    const Json order = order_of(session_);
    const auto open = [&] {
      in_cache([&] {
        create_directories(cache_dir());
        output.writer.emplace(set.path, set.key, order);
      });
    };
    world_.run_and_agree("opening " + set.path, [&] {
      if (world_.rank() == 0) open();
    });
    const std::string mine = world_.rank() == 0 ? std::to_string(output.writer->inode()) : "";
    const std::string first = world_.exchange("the file of the reference", mine)[0];
    world_.run_and_agree("opening " + set.path, [&] {
      if (!is_first_on_machine() || world_.rank() == 0) return;
      open();
      if (output.writer->is_elsewhere() && std::to_string(output.writer->inode()) == first) output.writer.reset();
    });
    output.num_blocks = UINT64_MAX;
    const std::string own = output.writer ? std::to_string(output.writer->num_blocks()) : "";
    for (const std::string& count : world_.exchange("blocks of the reference", own))
      if (!count.empty()) output.num_blocks = std::min<uint64_t>(output.num_blocks, std::stoull(count));
    if (!output.writer) return;
    output.writer->keep(output.num_blocks);
    if (const std::string& why = output.writer->why_not_continued(); !why.empty())
      counted_warning(
          "reference.interrupted " + set.name(),
          fmt::format("the reference of {} was interrupted, and begins again{}: {}", set.name(),
                      output.num_blocks > 0 ? fmt::format(" after {} blocks", output.num_blocks) : "", why));
  }

  void compute(Set& set) {
    const CreationLimit limit(mode_of(set));
    const auto start = Clock::now();
    Output output;
    open_output(set, output);
    std::optional<ProgressBar> bar;
    if (world_.rank() == 0) bar.emplace("computing the reference");
    EvalData data = set.read_once();
    const TokenStoreFacts& facts = set.rows.store().facts();
    const double bytes_per_row = static_cast<double>(facts.num_tokens) * static_cast<double>(facts.id_bytes) /
                                 static_cast<double>(std::max<uint64_t>(1, data.num_rows()));
    uint64_t num_rows = 0, block = 0;
    for (std::vector<Batch> batches; !(batches = next_block(data)).empty(); ++block) {
      for (const Batch& batch : batches) num_rows += static_cast<uint64_t>(batch.num_rows * ranks_.num_data_ranks());
      num_rows = std::min(num_rows, data.num_rows());
      if (block < output.num_blocks) continue;
      const std::vector<ReferenceRecord> records = exchanged(values_of(set, batches));
      if (output.writer) in_cache([&] { output.writer->add(records); });
      const auto bytes = [&](uint64_t rows) {
        return static_cast<uint64_t>(static_cast<double>(rows) * bytes_per_row);
      };
      if (bar) bar->update(bytes(num_rows), bytes(data.num_rows()), set.name(), num_rows);
    }
    bar.reset();
    world_.run_and_agree("keeping " + set.path, [&] {
      if (!output.writer) return;
      in_cache([&] { output.writer->finish(); });
      remove_old_references(set.prefix, kMaxKept);
    });
    world_.run_and_agree("reading " + set.path, [&] { set.kept = open_made(set); });
    log::info("reference: {} units of {} computed in {:.1f} s{}, kept in {} (data.cache_dir)",
              set.kept->num_documents(), set.name(), std::chrono::duration<double>(Clock::now() - start).count(),
              output.num_blocks > 0 ? fmt::format(" after {} of {} blocks of an interrupted run",
                                                  std::min(output.num_blocks, block), block)
                                    : "",
              set.path);
  }

  std::shared_ptr<const ReferenceStore> open_made(const Set& set) const {
    for (const auto start = Clock::now();
         path_kind_nofollow(set.path) == PathKind::kAbsent && Clock::now() - start < kVisibleWithin;)
      std::this_thread::sleep_for(100ms);
    return std::make_shared<const ReferenceStore>(set.path, set.key, set.rows.store().num_documents());
  }

  std::vector<Batch> next_block(EvalData& data) const {
    std::vector<Batch> batches;
    const int64_t micro_batch_size = session_.settings().train.micro_batch_size;
    while (batches.size() < kBlockBatches) {
      std::optional<Batch> batch = data.next(micro_batch_size, ranks_.data_rank(), ranks_.num_data_ranks());
      if (!batch) break;
      batches.push_back(std::move(*batch));
    }
    return batches;
  }

  // Those of this rank, if it is the one that counts its rows.
  std::vector<ReferenceRecord> values_of(const Set& set, const std::vector<Batch>& batches) {
    enter_phase("reference");
    std::vector<ReferenceRecord> records;
    for (const Batch& batch : batches) {
      const StreamValues outputs = session_.executor().outputs(purpose_, to_fields(batch, session_.device()));
      if (outputs.empty() || !ranks_.counts_rows()) continue;
      std::vector<ReferenceLogps> logps = reference_logps(desc_, batch, outputs);
      for (size_t s = 0; s < logps.size(); ++s) {
        const BatchSequence& sequence = batch.sequences[s];
        require_finite(set, sequence.document, logps[s].sum);
        if (s == 0 || sequence.unit != batch.sequences[s - 1].unit) records.push_back({sequence.document, {}});
        records.back().sequences.push_back(std::move(logps[s]));
      }
    }
    ranks_.events().finish_step();
    return records;
  }

  void require_finite(const Set& set, uint64_t document, double sum) const {
    if (std::isfinite(sum)) return;
    throw Error(ExitCode::kNumeric, set.rows.store().origin(document),
                fmt::format("the reference gives an answer of this row the log-probability {}", sum))
        .hint("check the weights of the reference, and precision.compute");
  }

  // [all-ranks] The records of all data-parallel ranks.
  std::vector<ReferenceRecord> exchanged(const std::vector<ReferenceRecord>& own) const {
    const std::vector<double> mine = to_numbers(own);
    const auto rank = static_cast<size_t>(ranks_.data_rank());
    std::vector<double> sizes(static_cast<size_t>(ranks_.num_data_ranks()));
    if (ranks_.counts_rows()) sizes[rank] = static_cast<double>(mine.size());
    ranks_.sum(sizes, "sizes of the values of the reference");
    size_t begin = 0, total = 0;
    for (size_t r = 0; r < sizes.size(); ++r) {
      if (r == rank) begin = total;
      total += static_cast<size_t>(sizes[r]);
    }
    std::vector<double> numbers(total);
    std::ranges::copy(mine, numbers.begin() + static_cast<ptrdiff_t>(begin));
    ranks_.sum(numbers, "values of the reference");
    return records_from_numbers(numbers);
  }

  Session& session_;
  World& world_;
  const Ranks ranks_;
  const ObjectiveDesc& desc_;
  const Purpose purpose_;
  std::vector<Set> sets_;
};

}  // namespace

bool precomputes_reference(const Session& session) {
  if (session.objective() == nullptr || !session.objective()->needs_reference() ||
      session.settings().reference.mode != ReferenceMode::kPrecompute)
    return false;
  session.compiled().resolved(reference_purpose(session));
  return true;
}

std::string reference_model_hash(Session& session) {
  return reference_hash(shared_model_key(session, reference_purpose(session)));
}

std::string precompute_reference(Session& session, TrainData* train, const std::vector<std::unique_ptr<EvalData>>& eval,
                                 const std::function<void()>& fill) {
  return Precomputation(session, train, eval)(fill);
}

}  // namespace chassis
