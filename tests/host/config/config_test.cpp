// Loaded configurations: values, defaults, origins, options of plugins, the resolved file.
#include "host/config/config.hpp"

#include <gtest/gtest.h>

#include "host/base/json.hpp"
#include "host/config/toml_file.hpp"
#include "tests/host/config/example.hpp"

namespace chassis {
namespace {

Config example(const std::vector<std::string>& overrides = {}) {
  return load_whole(load_config_text(kExample, "a.toml", overrides));
}

TEST(Config, AListOfNamesCanBeGivenWithCommas) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(*example({"log.sinks=console,jsonl"}).settings().log.sinks, (Words{"console", "jsonl"}));
  EXPECT_EQ(*example({"log.sinks=console"}).settings().log.sinks, Words{"console"});
  EXPECT_EQ(*example({"kernels.plugins=reference"}).settings().kernels.plugins, Words{"reference"});
}

// As `plugins check` gives them to a member.
TEST(Config, ReadsOptionsOfEveryTypeAsARunDoes) {
  std::vector<OptionSpec> specs(5);
  specs[0].name = "betas", specs[0].type = OptionType::kFloatList;
  specs[1].name = "name", specs[1].type = OptionType::kString;
  specs[2].name = "words", specs[2].type = OptionType::kStringList;
  specs[3].name = "lr", specs[3].type = OptionType::kFloat;
  specs[4].name = "extra", specs[4].type = OptionType::kTable;
  const auto read = [&](const std::vector<std::string>& words) { return Config::read_options(specs, words).dump(); };
  EXPECT_EQ(read({"betas=0.9,1", "name=007", "words=a,b", "lr=1", "extra.deep=true", "other=3"}),
            R"({"betas":[0.9,1.0],"name":"007","words":["a","b"],"lr":1.0,"extra":{"deep":true}})");
  EXPECT_EQ(read({"betas=[0.5]", "words=a"}), R"({"betas":[0.5],"words":["a"]})");
  EXPECT_THROW(read({"lr=fast"}), Error);
}

TEST(Config, GivesTypedValuesAndDefaults) {
  const Config config = example();
  const Settings& s = config.settings();
  EXPECT_EQ(*s.train.seq_len, 512);
  EXPECT_EQ(*s.optimizer.lr, 3e-4);
  EXPECT_EQ(*s.precision.compute, DtypeChoice::kAuto);
  EXPECT_TRUE(*s.data.shuffle);
  EXPECT_EQ(*s.log.sinks, (std::vector<std::string>{"console", "jsonl"}));
  ASSERT_EQ(s.data.train.size(), 1u);
  EXPECT_EQ(*s.data.train[0].path, "tiny.txt");
  EXPECT_EQ(*s.data.train[0].format, DataFormat::kText);
  EXPECT_TRUE(s.data.eval.empty());
  EXPECT_FALSE(config.json().contains("quant"));
  EXPECT_EQ(to_json(*s.model.config).dump(),
            R"({"hidden_size":256,"num_hidden_layers":4,"rope_theta":500000.0,"nested":{"a":[1,2]}})");
}

// "é" outside of quotes can reach code that the parser marks as unreachable; only sanitizers and fuzzing detect that.
TEST(Config, LettersBeyondAsciiAreReadInQuotesAndRefusedOutside) {
  const TomlValue table = parse_toml("a = \"é\" # é\n\"é\" = 1\n\"о\" = \"\"\"x\\\né\"\"\"\n", "a.toml");
  EXPECT_EQ(table.find("a")->string, "é");
  EXPECT_EQ(table.find("é")->integer, 1);
  EXPECT_EQ(table.find("о")->string, "xé");
  for (const char* text : {"é = 1\n", "a = 1 а\n", "a = Ā\n", "[µ]\n"})
    EXPECT_THROW(parse_toml(text, "a.toml"), Error) << text;
}

TEST(Config, DerivesDefaultsFromOtherKeys) {
  const Config config = example();
  EXPECT_EQ(*config.settings().run.output_dir, "out/quickstart");
  EXPECT_EQ(*config.settings().model.init, ModelInit::kRandom);
  const Config named = example({"data.eval.0.path=held/out.txt"});
  EXPECT_EQ(*named.settings().data.eval[0].name, "eval");
  const Config two = example({"data.eval.0.path=held/out.txt", "data.eval.1.path=b.txt"});
  EXPECT_EQ(*two.settings().data.eval[0].name, "out");
}

TEST(Config, OptionsOfPluginsKnowTheirOrigin) {
  const Config config = example();
  EXPECT_EQ(config.plugin_option_origin("optimizer", "betas").text(), "a.toml:18:9");
  EXPECT_EQ(config.plugin_option_origin("optimizer", "eps").text(), "default of adamw");
}

TEST(Config, AProblemKeepsItsCodeAndSeveralAreAConfigErrorIfOneIs) {
  const auto code_of = [](const std::vector<Error>& errors) {
    Config config = load_config_text(kExample, "a.toml", {});
    for (const Error& error : errors) config.add_problem("optimizer", error);
    try {
      config.throw_if_problems();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("\nhint: do it"), std::string::npos);
      return e.code();
    }
    return ExitCode::kOk;
  };
  const Error plugin = plugin_error("no such plugin").hint("do it"), config = config_error("no such key").hint("do it");
  EXPECT_EQ(code_of({plugin}), ExitCode::kPlugin);
  EXPECT_EQ(code_of({plugin, plugin}), ExitCode::kPlugin);
  EXPECT_EQ(code_of({plugin, config}), ExitCode::kConfig);
}

TEST(Config, ListsThePluginsThatItNames) {
  const Config config = load_config_text(
      kExample + "[kernels]\nplugins = [\"fused\", \"aten\"]\n[[parallel]]\nplugin = \"zero\"\n", "a.toml", {});
  std::string all;
  for (const PluginSlot& slot : config.plugin_slots()) all += slot.key + ":" + slot.kind + ":" + slot.plugin + " ";
  EXPECT_EQ(all,
            "model:model:llama tokenizer:tokenizer:bytes optimizer:optimizer:adamw parallel.0:parallel:zero "
            "comm:comm:auto attention:ops:auto kernels.fused:ops:fused kernels.aten:ops:aten checkpoint:format:native "
            "export:format:safetensors ");
}

TEST(Config, AModelWithAPathNeedsNoPlugin) {
  const Config config = load_config_text("[model]\npath = \"m\"\n", "a.toml", {});
  ASSERT_FALSE(config.plugin_slots().empty());
  EXPECT_EQ(config.plugin_slots()[0].plugin, "");
  EXPECT_EQ(config.plugin_slots()[0].where.text(), "a.toml:1:2");
}

TEST(Config, OptionsOfAPluginAreCheckedAndFilledIn) {
  const Config config = example();
  EXPECT_EQ(config.plugin_options("optimizer").dump(), R"({"betas":[0.9,0.95],"eps":1e-08})");
  EXPECT_EQ(what_is_wrong(kExample, {"optimizer.betas=[0.9, 2]"}),
            "command line 'optimizer.betas=[0.9, 2]': optimizer.betas = 2.0 is out of range: must be between 0 and 1");
  EXPECT_EQ(what_is_wrong(kExample, {"optimizer.epsilon=1e-3"}),
            "command line 'optimizer.epsilon=1e-3': unknown key 'optimizer.epsilon' (did you mean 'eps'?)");
}

TEST(Config, OptionsOfListedPluginsHaveTheirOwnTables) {
  Config config = load_config_text(kExample + "[kernels.aten]\nfast = false\n", "a.toml", {});
  config.check_plugin_options("optimizer", "adamw", adam_options());
  config.check_plugin_options("kernels.aten", "aten",
                              {{.name = "fast", .type = OptionType::kBool, .default_json = "true"},
                               {.name = "size", .type = OptionType::kInt, .default_json = "3"}});
  config.finish();
  EXPECT_EQ(config.plugin_options("kernels.aten").dump(), R"({"fast":false,"size":3})");
  EXPECT_EQ(what_is_wrong(kExample + "[kernels]\nplugins = [\"aten\"]\n[kernels.atem]\nfast = false\n"),
            "a.toml:25:10: [kernels.atem]: 'atem' is not in kernels.plugins (did you mean 'aten'?)");
}

TEST(Config, NoTableIsAddedWithoutAnOptionInIt) {
  Config config = load_config_text(kExample, "a.toml", {});
  config.check_plugin_options("kernels.aten", "aten", {{.name = "fast", .type = OptionType::kBool}});
  const std::vector<OptionSpec> wrong = {{.name = "size", .type = OptionType::kInt, .default_json = "3"},
                                         {.name = "fast", .type = OptionType::kBool, .default_json = "\"no\""}};
  EXPECT_THROW(config.check_plugin_options("kernels.fused", "fused", wrong), Error);
  EXPECT_EQ(config.option_tables("kernels"), std::vector<std::string>());
}

TEST(Config, ListsTheTablesOfOptions) {
  const Config config = load_config_text(kExample + "[kernels.b]\nx = 1\n[kernels.a]\n", "a.toml", {});
  const Settings::Kernels& kernels = config.settings().kernels;
  EXPECT_EQ(config.option_tables(kernels.key()), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(kernels.slot_of("a"), "kernels.a");
}

TEST(Config, APluginsRequiredOptionMustBeSet) {
  Config config = load_config_text(kExample, "a.toml", {});
  config.check_plugin_options("optimizer", "adamw", adam_options());
  config.check_plugin_options("tokenizer", "hf", {{.name = "file", .doc = "tokenizer.json", .required = true}});
  try {
    config.finish();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "a.toml:8:2: tokenizer.file is missing: plugin 'hf' needs it: tokenizer.json");
  }
}

TEST(Config, APluginMayNotClaimAKeyOfTheHost) {
  Config config = load_config_text(kExample, "a.toml", {});
  try {
    config.check_plugin_options("optimizer", "adamw", {{.name = "lr", .type = OptionType::kFloat}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kPlugin);
  }
}

TEST(Config, AllErrorsAreReportedAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(what_is_wrong(R"([run]
max_step = 3
seed = -1
[model]
path = "m"
[train]
seq_len = 12.5
[optimizer]
lr = 1e-3
beta = 1
[[data.train]]
path = "x.jsonl"
format = "token"
)"),
            R"(6 errors in the configuration:
  a.toml:1:2: the run has no length: set run.max_steps or run.epochs
  a.toml:2:1: unknown key 'run.max_step' (did you mean 'max_steps'?)
  a.toml:3:8: run.seed = -1 is out of range: must be at least 0
  a.toml:7:11: train.seq_len must be an integer, not a number with a decimal point (12.5)
  a.toml:10:1: unknown key 'optimizer.beta' (did you mean 'betas'?)
  a.toml:13:10: data.train.0.format = "token" is not "text", "alpaca", "sharegpt", "messages", "prompt_completion", "segments", "tokens", "preference", "labelled", "classification", "rollouts" or "distillation" (did you mean "tokens"?))");
}

TEST(Config, TheResolvedFileParsesBackToItself) {
  const Config config = example({"run.name=a \"b\"\\ c\n", "data.eval.0.path=e.txt", "optimizer.lr=1e-30",
                                 "plugins.pin={ \"x.y\" = \"sha256:" + std::string(64, 'a') + "\" }"});
  const std::string text = config.resolved_toml();
  const Config again = load_whole(load_config_text(text, "resolved.toml", {}));
  EXPECT_TRUE(again.same_values(config)) << text;
  const Config third = load_whole(load_config_text(again.resolved_toml(), "resolved.toml", {}));
  EXPECT_TRUE(third.same_values(config));
  EXPECT_FALSE(example({"run.seed=1"}).same_values(config));
  EXPECT_NE(text.find("seq_len = 512                               # a.toml:11:11\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# default of adamw\n"), std::string::npos);
}

TEST(Config, APinMayHaveUpperCaseDigits) {
  const std::string hash = std::string(32, 'a') + std::string(32, 'B');
  EXPECT_NO_THROW(example({"plugins.pin={ adamw = \"sha256:" + hash + "\" }"}));
}

TEST(Config, TheResolvedFileHoldsNoControlCharacter) {
  const std::string name = "\xc2\x9b\xc2\x85\xe2\x80\xae\xe2\x80\xa8 \x1b\x7f é";
  const Config config = example({"run.name=" + name});
  const std::string text = config.resolved_toml();
  EXPECT_NE(text.find("name = \"\\u009B\\u0085\\u202E\\u2028 \\u001B\\u007F é\""), std::string::npos) << text;
  EXPECT_EQ(load_whole(load_config_text(text, "resolved.toml", {})).json()["run"]["name"], name);
}

TEST(Config, TheResolvedFileHoldsTablesOfListedPlugins) {
  const std::string more =
      "[kernels]\nplugins = [\"fused\", \"aten\"]\n[kernels.fused]\nfast = false\n[[parallel]]\nplugin = "
      "\"zero\"\nstage = 3\n";
  const auto load = [](const std::string& text) {
    Config config = load_config_text(text, "a.toml", {});
    config.check_plugin_options("optimizer", "adamw", adam_options());
    config.check_plugin_options("kernels.fused", "fused", {{.name = "fast", .type = OptionType::kBool}});
    config.check_plugin_options("parallel.0", "zero", {{.name = "stage", .type = OptionType::kInt}});
    config.finish();
    return config;
  };
  const Config config = load(kExample + more);
  EXPECT_TRUE(load(config.resolved_toml()).same_values(config)) << config.resolved_toml();
}

TEST(Config, BatchSizesDeriveAccumulation) {
  const Config config = example();
  EXPECT_EQ(batch_sizes(config.settings(), 1).num_microbatches, 4);
  EXPECT_EQ(batch_sizes(config.settings(), 2).num_microbatches, 2);
  try {
    batch_sizes(config.settings(), 3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "a.toml:13:21: train.global_batch_size = 32 is not a multiple of train.micro_batch_size × data-parallel "
        "ranks = 8 × 3 = 24 (try 24 or 48)");
  }
}

}  // namespace
}  // namespace chassis
