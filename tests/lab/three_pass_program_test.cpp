// The program itself, with the model that ships: needle, report, dump, errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/lab/cli.h"
#include "common/loader/tokenizer.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/program.h"
#include "tests/support/tensors.h"

namespace kvlab {
namespace {

class ThreePassProgram : public testing::Test {
 protected:
  ProgramRun Lab(const std::string& arguments) {
    return RunCommand(StrCat(Quoted(KVLAB_THREE_PASS), " ", arguments),
                      dir_.path());
  }
  std::string File(const std::string& name) {
    return Quoted((dir_ / name).string());
  }
  std::string Bytes(const std::string& name) { return ReadFile(dir_ / name); }
  /// Names in the folder beside the captured outputs.
  std::vector<std::string> Left() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name != "out" && name != "err") names.push_back(name);
    }
    return names;
  }
  TempDir dir_;
};

TEST_F(ThreePassProgram, AnswersTheNeedleQuestion) {
  KVLAB_NEEDS_A_REAL_CPU("shorter prompts run here");
  const ProgramRun run = Lab("");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "");  // no progress on a pipe
  EXPECT_TRUE(
      Has(run.out, "answer              Zara's favorite food is ramen.\n"))
      << run.out;
  EXPECT_TRUE(Has(run.out, "needle found        YES (looked for \"ramen\")"));
  EXPECT_TRUE(Has(run.out, "prompt              2061 tokens"));
}

TEST_F(ThreePassProgram, ReportsJson) {
  const ProgramRun run = Lab(
      "--context 100 --seed 3 --depth 0.25 --threads 2 --isa scalar --json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["program"], "day09_three_pass");
  EXPECT_EQ(json["stage"], "three_pass");
  EXPECT_EQ(json["model"], "lab_model");
  EXPECT_EQ(json["seed"], 3);
  EXPECT_EQ(json["context"], 100);
  EXPECT_EQ(json["depth"], 0.25);
  EXPECT_EQ(json["needle"]["expected"], "ramen");
  EXPECT_EQ(json["needle"]["found"], true);
  EXPECT_EQ(json["output"], "Zara's favorite food is ramen.");
  EXPECT_EQ(json["tokens"]["prompt"], 100);
  const int generated = json["tokens"]["generated"];
  EXPECT_GT(json["prefill_s"].get<double>(), 0);
  EXPECT_GT(json["decode"]["attention_ms"].get<double>(), 0);
  EXPECT_GT(json["decode"]["total_ms"].get<double>(),
            json["decode"]["attention_ms"].get<double>());
  EXPECT_TRUE(json["decode"]["select_ms"].is_null());
  EXPECT_EQ(json["kv"]["format"], "f32");
  // K and V, 3 layers, 2 KV heads, head_dim 128, 4 bytes; the prompt and the
  // answer's tokens.
  EXPECT_EQ(json["kv"]["bytes"], 2 * 3 * 2 * 128 * 4 * (100 + generated));
  EXPECT_TRUE(json["tile"].is_null());
  EXPECT_EQ(json["isa"], "scalar");
  EXPECT_EQ(json["threads"], 2);
  EXPECT_TRUE(json["sparse"].is_null());
  EXPECT_TRUE(json.contains("version"));
}

TEST_F(ThreePassProgram, DumpsTheSameBytesWhateverTheMachineDoes) {
  const std::string common = "--context 100 --max-tokens 5 --dump ";
  ASSERT_EQ(Lab(common + File("a") + " --threads 1 --isa scalar").exit_code, 0);
  ASSERT_EQ(
      Lab(common + File("b") + " --threads 3 --prefill-chunk 7").exit_code, 0);
  EXPECT_EQ(Bytes("a"), Bytes("b"));
  ASSERT_EQ(Lab(common + File("c") + " --seed 2").exit_code, 0);
  EXPECT_NE(Bytes("a"), Bytes("c"));

  const SafetensorsFile dump = SafetensorsFile::Open(dir_ / "a");
  EXPECT_EQ(dump.metadata().at("stage"), "three_pass");
  EXPECT_EQ(dump.metadata().at("not_materialised"), "");
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(dump.Find("attention")->shape, (Shape{4, 3, 4, 128}));
  EXPECT_EQ(dump.Find("scores")->shape, (Shape{3, 4, 101}));
  EXPECT_EQ(dump.Find("weights")->shape, (Shape{3, 4, 101}));
  EXPECT_EQ(dump.Find("logits")->shape[0], 5u);
  EXPECT_EQ(dump.Find("prompt_tokens")->shape, (Shape{100}));
  EXPECT_EQ(dump.Find("tokens")->shape, (Shape{5}));
  // Each token is the argmax of its row of logits.
  const auto logits = Values<float>(dump, "logits");
  const auto tokens = Values<std::int32_t>(dump, "tokens");
  const std::size_t vocab = logits.size() / 5;
  for (std::size_t i = 0; i < 5; ++i) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(i * vocab);
    EXPECT_EQ(
        std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row,
        tokens[i]);
  }
}

TEST_F(ThreePassProgram, RunsAPromptOfTheUsersOwn) {
  const ProgramRun direct =
      Lab("--prompt 'Hello there.' --max-tokens 3 --json");
  ASSERT_EQ(direct.exit_code, 0) << direct.err;
  const auto json = nlohmann::json::parse(direct.out);
  EXPECT_TRUE(json["needle"].is_null());
  EXPECT_TRUE(json["context"].is_null());
  WriteFile(dir_ / "prompt", "Hello there.");
  const ProgramRun file =
      Lab("--prompt-file " + File("prompt") + " --max-tokens 3 --json");
  EXPECT_EQ(nlohmann::json::parse(file.out)["output"], json["output"]);
  // Without the template there are fewer tokens.
  const ProgramRun raw =
      Lab("--raw --prompt 'Hello there.' --max-tokens 3 --json");
  EXPECT_LT(nlohmann::json::parse(raw.out)["tokens"]["prompt"],
            json["tokens"]["prompt"]);
}

TEST_F(ThreePassProgram, MaxTokensAndIgnoreEos) {
  const ProgramRun run =
      Lab("--context 64 --max-tokens 12 --ignore-eos --json");
  EXPECT_EQ(nlohmann::json::parse(run.out)["tokens"]["generated"], 12);
  const ProgramRun one = Lab("--context 64 --max-tokens 1 --json");
  const auto json = nlohmann::json::parse(one.out);
  EXPECT_EQ(json["tokens"]["generated"], 1);
  EXPECT_TRUE(json["decode"]["total_ms"].is_null());
  const ProgramRun cut = Lab("--context 64 --max-tokens 2");
  EXPECT_TRUE(Has(cut.out, "2 tokens, stopped by --max-tokens"));
  EXPECT_TRUE(Has(cut.out, "needle found        NO"));  // a result
  EXPECT_EQ(cut.exit_code, 0);
}

TEST_F(ThreePassProgram, BadInputIsOneLineAndAnExitCode) {
  const auto fails = [&](const std::string& arguments, int exit_code,
                         const std::string& part) {
    EXPECT_TRUE(
        FailsWithOneLine(Lab(arguments), exit_code, "day09_three_pass", part))
        << arguments;
  };
  const std::string broken = (dir_ / "broken.txt").string();
  WriteFile(broken, "ab\xFF");
  fails("--threads 0", 2, "--threads");
  fails("--threads -1", 2, "--threads");
  fails("--threads 99999999999", 2, "--threads");
  fails("--threads two", 2, "--threads");
  fails("--nonsense", 2, "--nonsense");
  fails("stray", 2, "stray");
  fails("--isa sse9", 2, "known are scalar");
  fails("--context 0", 2, "--context");
  fails("--context 10", 2, "tokens");
  fails("--context 8193", 2, "positions for 8192 tokens");
  fails("--context 8192", 2,
        "has positions for 8192: together");  // no room to answer
  fails("--depth 1.5", 2, "--depth");
  fails("--depth nan", 2, "--depth");
  fails("--seed -1", 2, "--seed");
  fails("--seed 99999999999999999999", 2, "--seed");
  fails("--fact 'one two.' stray", 2, "stray");
  for (const char* option : {"--model", "--prompt-file", "--isa", "--dump"}) {
    fails(StrCat(option, " ''"), 2, option);
  }
  fails("--max-tokens 0", 2, "--max-tokens");
  fails("--prefill-chunk 0", 2, "--prefill-chunk");
  fails("--raw --prompt ''", 2, "an empty one");
  fails("--raw --prompt-file /dev/null", 2, "the prompt is empty");
  fails("--depth abc", 2, "expected a number from 0 to 1, found \"abc\"");
  fails("--dump -", 2,
        "--dump: expected the name of a file, found \"-\": standard output has "
        "the report; a file of that name is ./-");
  fails("--dump= --json", 2, "--dump= expected a value");
  fails("--fact 'one two'", 2, "full stop");
  fails("--prompt-file - <&-", 1, "standard input: cannot be read");
  fails("--prompt-file /", 1, "/: expected a file, found a directory");
  fails("--prompt x --prompt-file y", 2, "excludes");
  fails("--prompt x --context 100", 2, "excludes");
  fails("--raw --thinking", 2, "excludes");
  fails("--thinking", 2, "no switch for thinking");
  fails("--tile 32", 2, "--tile");  // means nothing for this stage
  fails("--needle 'The word is xyzzy.'", 2, "add --question");
  fails("--model /nonexistent", 1, "/nonexistent");
  fails("--model " + File("out"), 1, "out");  // a file
  fails("--prompt-file /nonexistent", 1, "/nonexistent");
  fails("--prompt $(printf 'a\\377')", 2,
        "--prompt: expected UTF-8, found a broken character at byte 1");
  fails("--fact $(printf 'ab\\377')", 2, "--fact: expected UTF-8");
  fails("--prompt-file " + Quoted(broken), 1,
        "broken.txt: expected UTF-8, found a broken character at byte 2");
  fails("--dump same --trace same", 2, "--trace");  // stage 1 has none
  fails("--prompt-file " + Quoted(broken) + " --dump " + Quoted(broken), 2,
        "--prompt-file reads");
  fails("--show-prompt --json", 2, "--show-prompt");
  fails("--dump /nonexistent/x", 1, "/nonexistent/x");
  fails("--dump " + Quoted(dir_.path().string()), 1, "");
  EXPECT_EQ(Left(), std::vector<std::string>{"broken.txt"});
}

TEST_F(ThreePassProgram, WarnsBeyondTheTrainedContext) {
  // The lab model, but for what its config.json says.
  namespace fs = std::filesystem;
  fs::create_directory(dir_ / "model");
  for (const auto& entry : fs::directory_iterator(LabModelDirectory())) {
    fs::create_symlink(entry.path(), dir_ / "model" / entry.path().filename());
  }
  auto config = nlohmann::json::parse(Bytes("model/config.json"));
  config["kvlab_trained_context"] = 99;
  fs::remove(dir_ / "model/config.json");
  WriteFile(dir_ / "model/config.json", config.dump());
  const std::string arguments = "--max-tokens 1 --model " + File("model");
  EXPECT_EQ(Lab("--context 99 " + arguments).err, "");
  const ProgramRun run = Lab("--context 100 " + arguments);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err,
            "day09_three_pass: warning: the prompt has 100 tokens, but the "
            "model was trained on at most 99: expect wrong answers\n");
}

TEST_F(ThreePassProgram, WarnsOfAFactThatContradictsTheNeedle) {
  const ProgramRun run =
      Lab("--context 100 --max-tokens 1 --fact \"Zara's favorite food is "
          "pho.\"");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(run.err.starts_with("day09_three_pass: warning: ")) << run.err;
  EXPECT_TRUE(Has(run.out, "generated           1 token, stopped"));
}

TEST_F(ThreePassProgram, ShowsThePromptThatItUses) {
  const ProgramRun run = Lab("--context 0300 --show-prompt");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(Has(run.out, "Zara's favorite food is ramen."));
  EXPECT_TRUE(run.out.ends_with("<|im_start|>assistant\n\n")) << run.out;
  // Decimal, in spite of the zero; and the very prompt that is run.
  const Tokenizer tokenizer =
      Tokenizer::Load(LabModelDirectory() / "tokenizer.json");
  EXPECT_EQ(tokenizer.Encode(run.out.substr(0, run.out.size() - 1)).size(),
            300u);
}

/// A run that cannot report is a failed run: an old dump stays.
TEST_F(ThreePassProgram, KeepsTheOldDumpIfItCannotReport) {
  std::ofstream(dir_ / "dump") << "old";
  const ProgramRun run =
      RunCommand(StrCat(Quoted(KVLAB_THREE_PASS), " --context 64 --dump ",
                        File("dump"), " >/dev/full"),
                 dir_.path());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(Bytes("dump"), "old");
}

/// Ctrl-C while the program waits for a prompt that does not come. The shell's
/// opening of the pipe waits for the program's, however slow it is; in the half
/// second after that the program begins to read.
TEST_F(ThreePassProgram, CtrlCEndsWaitingForInput) {
  const ProgramRun run =
      RunCommand(StrCat("mkfifo ", File("in"), "; ", Quoted(KVLAB_THREE_PASS),
                        " --prompt-file ", File("in"), " & pid=$!; exec 3>",
                        File("in"), "; sleep 0.5; kill -INT $pid; wait $pid"),
                 dir_.path());
  EXPECT_TRUE(FailsWithOneLine(run, 130, "day09_three_pass", "interrupted"));
}

/// Ctrl-C in prefill and while decoding: 130, one line, no dump and no
/// temporary file. The signal comes when a line of the log shows where the
/// program is; unheeded, both runs would end by themselves, with 0.
TEST_F(ThreePassProgram, CtrlCLeavesNothingBehind) {
  const auto interrupted_at = [&](const std::string& seen,
                                  const std::string& arguments) {
    const ProgramRun run = RunCommand(
        StrCat(Quoted(KVLAB_THREE_PASS), " --isa scalar --threads 1 ",
               arguments, " --dump ", File("dump"), " >", File("log"),
               " & pid=$!\n"
               "tries=0; until grep -sq '",
               seen, "' ", File("log"),
               " || [ $tries = 600 ]; do sleep 0.05; tries=$((tries + 1)); "
               "done\nkill -INT $pid; wait $pid; code=$?; rm ",
               File("log"), "; exit $code"),
        dir_.path());
    EXPECT_TRUE(FailsWithOneLine(run, 130, "day09_three_pass", "interrupted"))
        << arguments;
    EXPECT_EQ(Left(), std::vector<std::string>()) << arguments;
  };
  interrupted_at("^question", "--context 2000 --prefill-chunk 32");
  interrupted_at("^answer", "--context 64 --max-tokens 3000 --ignore-eos");
}

}  // namespace
}  // namespace kvlab
