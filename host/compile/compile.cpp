// The order of the passes, and the programs resolved for each purpose.
#include "host/compile/compile.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "host/compile/apply_layout.hpp"
#include "host/compile/cache_pass.hpp"
#include "host/compile/liveness.hpp"
#include "host/compile/provider_checks.hpp"
#include "host/compile/selective.hpp"
#include "host/graph/recording.hpp"
#include "host/graph/rewrite.hpp"

namespace chassis {
namespace {

using Reports = std::vector<PassReport>;

void append(Reports& reports, Reports more) {
  reports.insert(reports.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

Program record(const Recording& from) {
  try {
    Program program = record_program(from.record);
    if (from.check) from.check(program);
    return program;
  } catch (const Error& e) {
    if (from.where.file.empty()) throw;
    Error error(e.code(), from.where, e.message());
    if (!from.file.empty()) error.with("file", from.file);
    throw error.hint(e.hint_text());
  }
}

Reports rewrite(const std::string& kind, const std::vector<const RewritePass*>& passes, Program& program) {
  if (passes.empty()) return {{kind, "", "none is chosen"}};
  Reports reports;
  for (const RewritePass* pass : passes) {
    const size_t before = reports.size();
    pass->rewrite(program, [&](std::string subject, std::string what) {
      reports.push_back({kind, pass->name() + " on " + subject, std::move(what)});
    });
    check_rewritten(program, kind + " '" + pass->name() + "'");
    if (reports.size() == before) reports.push_back({kind, pass->name(), "finds nothing to change"});
  }
  return reports;
}

}  // namespace

// Resolves a purpose on first use, which does not change the value: the same nodes are made whenever it happens.
struct CompiledProgram::Rewritten {
  // The nodes of a purpose; they point into the providers of its options.
  struct Nodes {
    ResolveOptions options;
    ResolvedProgram program;
  };

  Program program;
  ProgramLayout layout;
  std::unique_ptr<ParameterTable> parameters;
  ResolveOptions options;
  std::vector<PassReport> reports;  // those of the passes before the providers pass

  const Nodes& nodes(Purpose purpose) const;

 private:
  void find_lifetimes(Nodes& nodes) const;

  mutable std::mutex mutex_;  // guards the members below
  mutable std::map<Purpose, std::unique_ptr<const Nodes>> nodes_;
  mutable bool counted_idle_ = false;
};

struct CompiledProgram::Recomputed {
  Recompute recompute;
  std::string reason;

  const ResolvedProgram& resolved(const Rewritten& rewritten, Purpose purpose) const;

 private:
  mutable std::mutex mutex_;  // guards the member below
  mutable std::map<Purpose, ResolvedProgram> resolved_;
};

const CompiledProgram::Rewritten::Nodes& CompiledProgram::Rewritten::nodes(Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = nodes_.find(purpose); known != nodes_.end()) return *known->second;
  auto made = std::make_unique<Nodes>(Nodes{options, {}});
  made->options.purpose = purpose;
  made->program = resolve_program(program, layout, *parameters, made->options);
  // Counted once, because evaluation has the nodes of training. Logits are left out: their nodes lack the loss.
  if (purpose != Purpose::kLogits && purpose != Purpose::kReference && !std::exchange(counted_idle_, true))
    count_idle_providers(made->program, made->options);
  find_lifetimes(*made);
  return *nodes_.emplace(purpose, std::move(made)).first->second;
}

void CompiledProgram::Rewritten::find_lifetimes(Nodes& nodes) const {
  std::map<const ResolvedBlock*, std::shared_ptr<const ResolvedBlock>> known;  // units share blocks
  for (auto& unit : nodes.program.units) {
    auto& made = known[unit.get()];
    if (!made) {
      auto block = std::make_shared<ResolvedBlock>(*unit);
      find_liveness(program, layout, nodes.options, *block);
      if (nodes.options.purpose == Purpose::kLogits && nodes.options.narrows_cache)
        find_cached_values(*block, nodes.options.compute);
      made = std::move(block);
    }
    unit = made;
  }
}

const ResolvedProgram& CompiledProgram::Recomputed::resolved(const Rewritten& rewritten, Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = resolved_.find(purpose); known != resolved_.end()) return known->second;
  ResolvedProgram resolved = rewritten.nodes(purpose).program;
  apply_recompute(rewritten.program, recompute, resolved);
  find_selective_liveness(resolved, rewritten.options.compute);
  return resolved_.emplace(purpose, std::move(resolved)).first->second;
}

CompiledProgram compile(const Recording& recording, CompileOptions options) {
  return compile(record(recording), std::move(options));
}

CompiledProgram compile(Program recorded, CompileOptions options) {
  auto out = std::make_shared<CompiledProgram::Rewritten>();
  out->program = std::move(recorded);
  append(out->reports, report_of_record(out->program));
  if (options.objective) out->reports.push_back({"objective", "", add_objective(out->program, *options.objective)});
  check_rewritten(out->program, "the objective pass");
  out->reports.push_back({"routers", "", add_router_losses(out->program, options.routers)});
  check_rewritten(out->program, "the router pass");
  append(out->reports, rewrite("adapter", options.passes.adapters, out->program));
  out->layout = apply_layout(out->program, options.passes.layout);
  append(out->reports, report_of_layout(out->program, out->layout));
  append(out->reports, rewrite("quant", options.passes.quant, out->program));

  out->parameters = std::make_unique<ParameterTable>(out->program, out->layout,
                                                     ParameterOptions{options.resolve.compute, options.freeze});

  out->options = std::move(options.resolve);
  for (const auto* providers : {&out->options.attention, &out->options.kernels})
    for (const OpsProvider& provider : *providers) check_provider(provider);
  CompiledProgram compiled(out, options.recompute, {});
  for (const Purpose purpose : options.purposes) compiled.resolved(purpose);
  return compiled;
}

CompiledProgram::CompiledProgram(std::shared_ptr<const Rewritten> rewritten, Recompute recompute, std::string reason)
    : rewritten_(std::move(rewritten)) {
  auto recomputed = std::make_shared<Recomputed>();
  recomputed->recompute = recompute;
  recomputed->reason = std::move(reason);
  recomputed_ = std::move(recomputed);
}

const Program& CompiledProgram::program() const { return rewritten_->program; }
const ProgramLayout& CompiledProgram::layout() const { return rewritten_->layout; }
ParameterTable& CompiledProgram::parameters() const { return *rewritten_->parameters; }
const ResolveOptions& CompiledProgram::options() const { return rewritten_->options; }
const Recompute& CompiledProgram::recompute() const { return recomputed_->recompute; }

const ResolvedProgram& CompiledProgram::resolved(Purpose purpose) const {
  return recomputed_->resolved(*rewritten_, purpose);
}

CompiledProgram CompiledProgram::with_recompute(Recompute recompute, std::string reason) const {
  return CompiledProgram(rewritten_, recompute, std::move(reason));
}

uint64_t CompiledProgram::planned_activation_bytes(Recompute recompute) const {
  const ResolvedProgram& training = rewritten_->nodes(Purpose::kTraining).program;
  const std::vector<BlockRecompute> modes = recompute_of_units(program(), recompute);
  uint64_t held = 0, peak = 0;
  for (size_t unit = 0; unit < training.units.size(); ++unit) {
    const ResolvedBlock& block = *training.units[unit];
    const uint64_t inside = std::max(block.kept_bytes + block.saved_bytes, block.peak_forward_bytes) +
                            block.workspace_bytes + 2 * block.input_bytes;
    peak = std::max(peak, held + inside);
    held += block.input_bytes + held_bytes(block, modes[unit], options().compute);
  }
  return std::max(peak, held);
}

std::vector<PassReport> CompiledProgram::reports(Purpose purpose) const {
  const ResolvedProgram& program = resolved(purpose);
  Reports reports = rewritten_->reports;
  append(reports, report_of_providers(program, rewritten_->nodes(purpose).options));
  append(reports, report_of_recompute(program, recomputed_->recompute, recomputed_->reason));
  append(reports, report_of_liveness(program));
  append(reports, report_of_cache(program, rewritten_->options));
  return reports;
}

ResolvedBlock compile_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options) {
  ResolvedBlock block = resolve_block(program, layout, type, slot_trainable, inputs_need_grad, options);
  find_liveness(program, layout, options, block);
  return block;
}

}  // namespace chassis
