// Checks of keys, types and values, and their messages: typos, keys of other trainers, unavailable features.
#include <gtest/gtest.h>

#include "host/base/json.hpp"
#include "host/config/foreign.hpp"
#include "host/config/suggest.hpp"
#include "tests/host/config/example.hpp"

namespace chassis {
namespace {

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("form", "from"), 1u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

TEST(Suggest, FindsTheIntendedKeyAndNothingElse) {
  const std::vector<std::string> keys = {"max_steps", "micro_batch_size", "global_batch_size", "seq_len", "lr"};
  EXPECT_EQ(nearest("max_step", keys), "max_steps");
  EXPECT_EQ(nearest("Seq-Len", keys), "seq_len");
  EXPECT_EQ(nearest("micro_batch", keys), "micro_batch_size");
  EXPECT_EQ(nearest("batch_size", keys), "");  // two candidates
  EXPECT_EQ(nearest("banana", keys), "");
  EXPECT_EQ(nearest("x", keys), "");
}

TEST(ForeignKeys, AreManyAndUnique) {
  EXPECT_GE(foreign_keys().size(), 60u);
  std::set<std::string_view> seen;
  for (const ForeignKey& key : foreign_keys()) EXPECT_TRUE(seen.insert(key.key).second) << key.key;
}

TEST(ForeignKeys, NameOnlyKeysThatExist) {
  // Words such as "train.seq_len": a table of the schema, a dot, a key.
  for (const ForeignKey& foreign : foreign_keys()) {
    const std::string answer(foreign.answer);
    for (size_t dot = answer.find('.'); dot != std::string::npos; dot = answer.find('.', dot + 1)) {
      const auto is_word = [&](size_t i) {
        return i < answer.size() && (std::isalnum(static_cast<unsigned char>(answer[i])) || answer[i] == '_');
      };
      size_t start = dot, end = dot + 1;
      while (start > 0 && is_word(start - 1)) --start;
      while (is_word(end)) ++end;
      const TableSpec* table = host_schema().find(answer.substr(start, dot - start));
      const std::string key = answer.substr(dot + 1, end - dot - 1);
      if (table == nullptr && (key == "json" || key == "jsonl")) continue;
      if (host_schema().find(answer.substr(start, end - start)) != nullptr) continue;
      ASSERT_NE(table, nullptr) << answer;
      EXPECT_NE(table->find(key), nullptr) << answer;
    }
  }
}

TEST(ForeignKeys, GetAnAnswerInEveryTable) {
  EXPECT_EQ(what_is_wrong("cutoff_len = 3\n" + kExample),
            "a.toml:1:1: unknown key 'cutoff_len' of LLaMA-Factory: use train.seq_len, and data.overflow for longer "
            "documents");
  EXPECT_EQ(what_is_wrong(kExample, {"optimizer.learning_rate=1"}),
            "command line 'optimizer.learning_rate=1': unknown key 'optimizer.learning_rate' of HF Trainer: use "
            "optimizer.lr");
  EXPECT_NE(what_is_wrong(kExample, {"data.train.0.type=chat_template"}).find("of Axolotl: use format"),
            std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"early_stopping_patience=3"}).find("use eval.patience"), std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"hub_model_id=me/mine"}).find("of HF Trainer: nothing is uploaded"),
            std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"special_tokens.pad_token=x"}).find("of Axolotl: special tokens come from"),
            std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"beta=0.1"}).find("of TRL: use beta in [objective]"), std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"data.train.0.split=train"}).find("the file of that split"), std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"eval_fraction=0.1"}).find("it is a key of another table: data.eval_fraction"),
            std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"load_best_model_at_end=true"}).find("use eval.keep_best"), std::string::npos);
  EXPECT_EQ(
      what_is_wrong(kExample + "[zero_optimization]\nstage = 3\noverlap_comm = true\n"),
      "2 errors in the configuration:\n"
      "  a.toml:24:1: unknown key 'zero_optimization.stage' of DeepSpeed: use [[parallel]] with plugin = \"zero\" and "
      "stage, sizes in [mesh]\n"
      "  a.toml:25:1: unknown key 'zero_optimization.overlap_comm'");
  EXPECT_EQ(what_is_wrong(kExample + "[training]\nsteps = 3\nseq_len = 4\n"),
            "2 errors in the configuration:\n"
            "  a.toml:24:1: unknown key 'training.steps' of torchtitan: use run.max_steps\n"
            "  a.toml:25:1: unknown key 'training.seq_len' (it is a key of another table: train.seq_len)");
}

TEST(ForeignKeys, OfPreferencesRewardsAndPoliciesAreAnswered) {
  const std::pair<const char*, const char*> answers[] = {
      {"rl=dpo", "of Axolotl: use train.task = \"preference\""},
      {"rl_beta=0.1", "use beta in [objective]"},
      {"dpo_loss_type=ipo", "use loss in [objective] with plugin = \"dpo\""},
      {"rpo_alpha=1", "use sft_weight in [objective]"},
      {"pref_beta=0.1", "of LLaMA-Factory: use beta in [objective]"},
      {"pref_loss=simpo", "\"cpo\" with loss = \"simpo\""},
      {"pref_ftx=0.1", "use sft_weight in [objective]"},
      {"pref_bco_weight=0.1", "\"bco_pair\""},
      {"simpo_gamma=0.5", "use gamma in [objective] with plugin = \"cpo\""},
      {"cpo_alpha=1", "use sft_weight in [objective] with plugin = \"cpo\""},
      {"orpo_alpha=0.1", "use beta in [objective] with plugin = \"orpo\""},
      {"kto_desirable_weight=1", "use desirable_weight in [objective] with plugin = \"kto\""},
      {"kto_undesirable_weight=1", "use undesirable_weight"},
      {"kto_chosen_weight=1", "use desirable_weight"},
      {"kto_rejected_weight=1", "use undesirable_weight"},
      {"center_rewards_coefficient=0.01", "use center_coefficient in [objective] with plugin = \"reward\""},
      {"precompute_ref_log_probs=true", "of TRL: use reference.mode = \"precompute\""},
      {"reference.precompute=true", "use mode = \"precompute\""},
      {"sync_ref_model=true", "a moving one is not available"},
      {"max_prompt_length=512", "data.overflow = \"truncate_left_prompt\" shortens prompts"},
      {"max_completion_length=512", "answers are never cut"},
      {"data.train.0.ranking=true", "use format = \"preference\""},
      {"data.train.0.kto_tag=label", "use format = \"labelled\""},
      {"stage=rm", "rm is \"reward\"; dpo and kto are \"preference\""},
      {"dpo_label_smoothing=0.1", "use label_smoothing in [objective]"},
      {"dpo_use_weighting=true", "(WPO) are not available"},
      {"reward_model=true", "use train.task = \"reward\""},
      {"process_reward_model=true", "of single steps are not available"},
      {"trl.beta=0.01", "use kl_beta in [objective] with plugin = \"policy\""},
      {"trl.use_vllm=true", "no answers are written during training"},
      {"trl.num_generations=8", "no answers are written during training"},
      {"num_labels=3", "use num_labels in [objective] with plugin = \"classify\""},
      {"kd_alpha=0.9", "use kd_weight in [objective] with plugin = \"distill\""},
  };
  for (const auto& [key, answer] : answers)
    EXPECT_NE(what_is_wrong(kExample, {key}).find(answer), std::string::npos) << key << "\n"
                                                                              << what_is_wrong(kExample, {key});
}

TEST(ForeignKeys, OfMethodsAreAnsweredWithATaskAndAnObjective) {
  const std::pair<const char*, const char*> tasks[] = {
      {"dpo", "use \"preference\", whose [objective] is \"dpo\""},
      {"simpo", "plugin = \"cpo\" and loss = \"simpo\""},
      {"kto", "plugin = \"kto\""},
      {"rm", "use \"reward\""},
      {"grpo", "use \"policy\", with rows of format \"rollouts\""},
      {"pt", "use \"pretrain\""},
  };
  for (const auto& [word, answer] : tasks)
    EXPECT_NE(what_is_wrong(kExample, {std::string("train.task=") + word}).find(answer), std::string::npos) << word;
  EXPECT_EQ(foreign_objective("simpo"), "plugin = \"cpo\" with loss = \"simpo\"");
  EXPECT_EQ(foreign_objective("dpo"), "") << "a plugin of this name exists";
}

TEST(ForeignKeys, OfLoraAreAnsweredWithOurs) {
  EXPECT_EQ(what_is_wrong(kExample, {"lora_r=8"}),
            "command line 'lora_r=8': unknown key 'lora_r' of Axolotl: use rank in [adapter] with plugin = \"lora\"");
  EXPECT_EQ(what_is_wrong(kExample, {"adapter=lora"}),
            "command line 'adapter=lora': adapter must be a table, not a string (\"lora\"): write adapter.plugin=lora");
  const std::pair<const char*, const char*> answers[] = {
      {"lora_alpha=16", "of Axolotl: use alpha in [adapter]"},
      {"lora_dropout=0.1", "of Axolotl: use dropout in [adapter]"},
      {"lora_target=all", "of LLaMA-Factory: use targets in [adapter]"},
      {"lora_target_modules=[\"q_proj\"]", "of Axolotl: use targets in [adapter]"},
      {"lora_target_linear=true", "whose targets are all linears by default"},
      {"lora_modules_to_save=[\"lm_head\"]", "of Axolotl: use modules_to_save in [adapter]"},
      {"additional_target=lm_head", "of LLaMA-Factory: use modules_to_save in [adapter]"},
      {"use_rslora=true", "of LLaMA-Factory: use use_rslora in [adapter]"},
      {"use_dora=true", "of LLaMA-Factory: DoRA is not available"},
      {"pissa_init=true", "of LLaMA-Factory: use init = \"kaiming\" or \"gaussian\" in [adapter]"},
      {"loraplus_lr_ratio=16", "of LLaMA-Factory: use lora_plus_ratio in [adapter]"},
      {"peft.r=8", "use [adapter] with plugin = \"lora\""},
      {"lora.r=8", "use [adapter] with plugin = \"lora\""},
      {"train.task=lora", "use [adapter] with plugin = \"lora\""},
      {"train.task=qlora", "use [quant] with plugin = \"bnb4\" and an [adapter]"}};
  for (const auto& [other, answer] : answers)
    EXPECT_NE(what_is_wrong(kExample, {other}).find(answer), std::string::npos)
        << other << ": " << what_is_wrong(kExample, {other});
}

TEST(ForeignKeys, OfPeftAreAnsweredInsideTheAdapterTable) {
  const std::string text = what_is_wrong(
      kExample +
      "[adapter]\nplugin = \"lora\"\nr = 8\nlora_alpha = 16\ntarget_modules = [\"q_proj\"]\nlora_dropout = 0.1\n");
  for (const char* line : {":25:1: unknown key 'adapter.r' of PEFT: use rank\n",
                           ":26:1: unknown key 'adapter.lora_alpha' of PEFT: use alpha\n",
                           ":27:1: unknown key 'adapter.target_modules' of PEFT: use targets\n",
                           ":28:1: unknown key 'adapter.lora_dropout' of PEFT: use dropout"})
    EXPECT_NE(text.find(line), std::string::npos) << text;
}

TEST(Check, ExplainsTypeErrors) {
  EXPECT_EQ(what_is_wrong(kExample, {"train.seq_len='512'"}),
            "command line 'train.seq_len='512'': train.seq_len must be an integer, not a string (\"512\") (remove the "
            "quotes)");
  EXPECT_EQ(what_is_wrong(kExample, {"optimizer.lr=1e400"}),
            "command line 'optimizer.lr=1e400': optimizer.lr must be a number, not a string (\"1e400\") (the largest "
            "number is 1.798e+308, the smallest 2.225e-308)");
  EXPECT_EQ(what_is_wrong(kExample, {"train.seq_len=512.0"}),
            "command line 'train.seq_len=512.0': train.seq_len must be an integer, not a number with a decimal point "
            "(512.0) (write 512)");
  EXPECT_EQ(what_is_wrong(kExample + "[log]\nsinks = \"console\"\n"),
            "a.toml:24:9: log.sinks must be a list of strings, not a string (\"console\") (write [\"console\"])");
  EXPECT_EQ(what_is_wrong(kExample, {"model.config.rope={ theta = nan }"}),
            "command line 'model.config.rope={ theta = nan }': model.config: theta = nan is not a finite number");
  EXPECT_EQ(what_is_wrong(kExample, {"log.sinks=[1]"}),
            "command line 'log.sinks=[1]': log.sinks must be a list of strings; 1 is an integer");
  EXPECT_EQ(what_is_wrong(kExample, {"optimizer.lr=nan"}),
            "command line 'optimizer.lr=nan': optimizer.lr = nan is not a finite number");
  EXPECT_NE(what_is_wrong("train = 3\n").find("train must be a table"), std::string::npos)
      << what_is_wrong("train = 3\n");
}

TEST(Check, CommasMakeAListOnTheCommandLine) {
  const Config config = load_whole(load_config_text(
      kExample, "a.toml", {"log.sinks=jsonl,console", "kernels.plugins=aten", "optimizer.betas=0.5,1"}));
  EXPECT_EQ(*config.settings().log.sinks, (std::vector<std::string>{"jsonl", "console"}));
  EXPECT_EQ(*config.settings().kernels.plugins, (std::vector<std::string>{"aten"}));
  EXPECT_EQ(config.json()["optimizer"]["betas"].dump(), "[0.5,1.0]");
  EXPECT_EQ(what_is_wrong(kExample, {"log.sinks=console,wandb,console"}),
            "command line 'log.sinks=console,wandb,console': log.sinks names \"console\" twice");
  // A regular expression may contain commas; then it needs quotes.
  EXPECT_NE(what_is_wrong(kExample, {"freeze.patterns=a{1,2}"}).find("must be a list of strings"), std::string::npos);
  EXPECT_EQ(what_is_wrong(kExample, {"freeze.patterns=norm"}), "nothing");
}

TEST(Check, AChoiceOfOtherTrainersIsTranslated) {
  EXPECT_EQ(what_is_wrong(kExample, {"run.device=gpu"}),
            "command line 'run.device=gpu': run.device = \"gpu\" is not \"auto\", \"cpu\" or \"cuda\" (did you mean "
            "\"cuda\"?)");
  EXPECT_EQ(what_is_wrong(kExample, {"precision.compute=float16"}),
            "command line 'precision.compute=float16': precision.compute = \"float16\" is not \"auto\", \"fp32\" or "
            "\"bf16\"")
      << "fp16 is not available";
}

TEST(Check, AnInvalidPatternIsReportedAtItsPosition) {
  EXPECT_EQ(what_is_wrong(kExample + "[freeze]\npatterns = [\"(?<!vision)norm\",\n  \"x)\"]\n"),
            "a.toml:25:3: freeze.patterns: \"x)\" is not a regular expression: unmatched closing parenthesis (at "
            "character 2)");
}

TEST(Check, UnavailableFeaturesAreRefusedAndNeverOffered) {
  EXPECT_EQ(what_is_wrong(kExample + "[quant]\nplugin = \"bnb4\"\n"),
            "a.toml:24:10: [quant] needs an [adapter]: quantized parameters cannot be trained\nhint: "
            "add [adapter] with plugin = \"lora\", or remove [quant]");
  EXPECT_EQ(
      what_is_wrong(kExample, {"adapter=qlora"}),
      "command line 'adapter=qlora': adapter must be a table, not a string (\"qlora\"): use [quant] with plugin = "
      "\"bnb4\" and an [adapter]");
  for (const char* other : {"load_in_4bit=true", "qlora.r=8"})
    EXPECT_NE(what_is_wrong(kExample, {other}).find("use [quant] with plugin = \"bnb4\""), std::string::npos) << other;
  EXPECT_NE(what_is_wrong(kExample, {"quantization=nf4"}).find("use [quant]"), std::string::npos);
  for (const char* compute : {"quant.bnb_4bit_compute_dtype=bfloat16", "bnb_4bit_compute_dtype=bfloat16"})
    EXPECT_NE(what_is_wrong(kExample + "[adapter]\nplugin = \"lora\"\n[quant]\nplugin = \"bnb4\"\n", {compute})
                  .find("use precision.compute, for all products"),
              std::string::npos)
        << compute;
  EXPECT_NE(what_is_wrong(kExample, {"load_in_8bit=true"}).find("8-bit weights (LLM int8) are not available"),
            std::string::npos);
  EXPECT_NE(what_is_wrong(kExample, {"train.task=ppo"}).find("PPO is not available"), std::string::npos);
  EXPECT_NE(what_is_wrong(kExample + "[freeze]\ngroups = [\"vision_tower\"]\n").find("freeze.groups is not available"),
            std::string::npos);
  EXPECT_EQ(what_is_wrong(kExample + "[freeze]\ngroups = []\n"), "nothing")
      << "a resolved configuration lists defaults";
  EXPECT_EQ(what_is_wrong(kExample, {"train.task=rewarb"}),
            "command line 'train.task=rewarb': train.task = \"rewarb\" is not \"pretrain\", \"sft\", "
            "\"preference\", \"reward\", \"classify\", \"policy\" or \"distill\" (did you mean \"reward\"?)");
  EXPECT_EQ(what_is_wrong(kExample + "[quantt]\na = 1\n"),
            "a.toml:23:2: unknown table [quantt] (did you mean 'quant'?)");
  for (const Unavailable& entry : unavailable()) {
    for (const ForeignKey& foreign : foreign_keys()) {
      const bool offered =
          entry.value.empty() && foreign.answer.find(std::string(entry.key) + ".") != std::string::npos;
      EXPECT_FALSE(offered) << foreign.answer;
    }
  }
}

TEST(ForeignOptimizers, AreAnsweredWithOurs) {
  EXPECT_EQ(foreign_optimizer("adamw_bnb_8bit"), "adamw8bit");
  EXPECT_EQ(foreign_optimizer("paged_adamw_8bit"), "adamw8bit");
  EXPECT_EQ(foreign_optimizer("adamw_torch_fused"), "adamw");
  EXPECT_EQ(foreign_optimizer("lion_8bit"), "lion");
  EXPECT_EQ(foreign_optimizer("adamw"), "");
  const std::string text = "optimizer = \"adamw_bnb_8bit\"\n[run]\nmax_steps = 1\n";
  EXPECT_NE(what_is_wrong(text).find("write optimizer.plugin = \"adamw8bit\""), std::string::npos)
      << what_is_wrong(text);
}

TEST(Check, EachHintIsPrintedOnce) {
  const std::string text =
      "[run]\nmax_steps = 1\n[model]\npath = \"m\"\n[train]\nseq_len = 8\n[optimizer]\nlr = 1.0\n"
      "[[data.train]]\npath = \"a.txt\"\n[[data.train]]\npath = \"b.txt\"\n";
  EXPECT_EQ(what_is_wrong(text),
            "2 errors in the configuration:\n"
            "  a.toml:9:1: data.train.0 is text, which needs a tokenizer\n"
            "  a.toml:11:1: data.train.1 is text, which needs a tokenizer\n"
            "hint: set tokenizer.plugin to the model's own, or tokenise the text with it and set format = \"tokens\"");
}

TEST(Check, ManyMistakesAreCountedRatherThanListed) {
  std::string text = kExample;
  for (int i = 0; i < 300; ++i) text += "[t" + std::to_string(i) + "]\n";
  const std::string message = what_is_wrong(text);
  EXPECT_EQ(message.substr(0, 14), "300 errors in ");
  EXPECT_NE(message.find("\n  … and 200 more"), std::string::npos);
}

TEST(Check, InvalidPathsAreReportedWithTheirKey) {
  EXPECT_EQ(what_is_wrong(kExample, {"run.output_dir=\"a\\u0000b\""}),
            "command line 'run.output_dir=\"a\\u0000b\"': run.output_dir = \"a\\u0000b\" contains a NUL character");
  const std::string output = what_is_wrong(kExample, {"run.output_dir=out/" + std::string(300, 'x')});
  EXPECT_NE(output.find("run.output_dir: the name " + std::string(40, 'x') +
                        "… (300 bytes) is too long: file systems "
                        "allow 255 bytes"),
            std::string::npos)
      << output;
  const std::string name = what_is_wrong(kExample, {"run.name=" + std::string(5000, 'x')});
  EXPECT_NE(name.find("run.name: " + std::string(40, 'x') +
                      "… (5000 bytes) is too long: at most 255 bytes are allowed, since run.output_dir is "
                      "out/<run.name> unless it is set"),
            std::string::npos)
      << name;
  EXPECT_EQ(name.find("run.output_dir:"), std::string::npos) << name;
  const std::string resume = what_is_wrong(kExample, {"run.resume=" + std::string(300, 'x')});
  EXPECT_NE(resume.find("run.resume: cannot access '"), std::string::npos) << resume;
  EXPECT_NE(resume.find("File name too long"), std::string::npos) << resume;
}

TEST(Check, TablesAndListsOfTablesAreDistinguished) {
  EXPECT_NE(what_is_wrong(kExample + "[parallel]\nplugin = \"zero\"\n")
                .find("a.toml:23:2: parallel must be a list of tables: write [[parallel]]"),
            std::string::npos)
      << what_is_wrong(kExample + "[parallel]\nplugin = \"zero\"\n");
  EXPECT_EQ(what_is_wrong(kExample + "[[mesh]]\ntp = 1\n").substr(0, 60),
            "a.toml:23:3: mesh must be a table, not a list ([{ tp = 1 }])");
  EXPECT_NE(
      what_is_wrong("log = 3\n" + kExample).find("a.toml:1:1: log must be a table, not an integer (3): write [log]"),
      std::string::npos);
}

TEST(Check, UnknownTablesAreOneError) {
  EXPECT_EQ(what_is_wrong(kExample + "[optimiser]\na = 1\nb = 2\n"),
            "a.toml:23:2: unknown table [optimiser] (did you mean 'optimizer'?)");
}

TEST(Check, RequiresOnlyKeysThatTheUseReads) {
  EXPECT_EQ(what_is_wrong("", {}, ConfigUse::kEvaluation),
            "3 errors in the configuration:\n"
            "  a.toml: train.seq_len is missing: tokens per row\n"
            "  a.toml: the model is missing: set model.path, or model.plugin and model.config\n"
            "  a.toml: there is no evaluation data: add [[data.eval]] with a path, or "
            "data.eval.0.path=FILE on the command line");
  EXPECT_EQ(what_is_wrong("", {}, ConfigUse::kGeneration),
            "2 errors in the configuration:\n"
            "  a.toml: the model is missing: set model.path, or model.plugin and model.config\n"
            "  a.toml: there is no tokenizer for the prompt\n"
            "hint: set tokenizer.plugin; `chassis plugins list` shows the tokenizers");
  const std::string model = "[model]\npath = \"m\"\n";
  EXPECT_EQ(what_is_wrong(model + "[tokenizer]\nplugin = \"bytes\"\n", {}, ConfigUse::kGeneration), "nothing");
  EXPECT_EQ(what_is_wrong(model + "[train]\nseq_len = 8\n[[data.eval]]\npath = \"a.jsonl\"\nformat = \"tokens\"\n", {},
                          ConfigUse::kEvaluation),
            "nothing");
}

TEST(Check, AlsoChecksKeysThatTheUseDoesNotRead) {
  EXPECT_EQ(what_is_wrong(kExample, {"optimizer.lr=-1"}, ConfigUse::kGeneration),
            "command line 'optimizer.lr=-1': optimizer.lr = -1.0 is out of range: must be at least 0");
  EXPECT_EQ(what_is_wrong(kExample, {"run.epochs=2"}, ConfigUse::kGeneration),
            what_is_wrong(kExample, {"run.epochs=2"}));
}

TEST(Schema, DefaultsAreValid) {
  // The example leaves most keys out, so their defaults are checked with it.
  EXPECT_EQ(what_is_wrong(kExample), "nothing");
  for (const TableSpec& table : host_schema().tables) {
    for (const OptionSpec& option : table.keys) {
      EXPECT_FALSE(option.doc.empty()) << table.name << "." << option.name;
      EXPECT_FALSE(option.required && !option.default_json.empty()) << table.name << "." << option.name;
    }
  }
}

}  // namespace
}  // namespace chassis
