/// day10_needle as a student runs it, with the shipped model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/program.h"

namespace kvlab {
namespace {

using Json = nlohmann::json;

class NeedleProgram : public testing::Test {
 protected:
  ProgramRun Run(const std::string& arguments,
                 const std::string& environment = "") {
    return RunCommand(
        StrCat(environment, " ", Quoted(KVLAB_NEEDLE), " ", arguments),
        dir_.path());
  }
  Json Runs(const std::string& arguments) {
    const ProgramRun run = Run("--json " + arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const Json json = Json::parse(run.out, nullptr, false);
    EXPECT_EQ(json["program"], "day10_needle");
    return json["runs"];
  }
  std::string File(const std::string& name) {
    return Quoted((dir_ / name).string());
  }
  bool Exists(const std::string& name) {
    return std::filesystem::exists(dir_ / name);
  }
  TempDir dir_;
};

/// The row of stage 4 with this k.
Json Find(const Json& runs, const std::string& kv, int k,
          bool sparse_prefill = false) {
  for (const Json& run : runs) {
    if (run["kv"]["format"] == kv && !run["sparse"].is_null() &&
        run["sparse"]["k"] == k &&
        run["sparse"]["sparse_prefill"] == sparse_prefill) {
      return run;
    }
  }
  ADD_FAILURE() << "no row with k " << k;
  return {};
}

bool Contains(const Json& text, const std::string& part) {
  return text.is_string() &&
         text.get<std::string>().find(part) != std::string::npos;
}

/// What the article's table says of this prompt, and why.
TEST_F(NeedleProgram, TheArticlesTable) {
  KVLAB_NEEDS_A_REAL_CPU("shorter prompts run here");
  const Json runs = Runs("--csv " + File("a.csv"));
  ASSERT_EQ(runs.size(), 3u + 2 * 8);
  for (const Json& run : runs) {
    EXPECT_EQ(run["tokens"]["prompt"], 2061);
    EXPECT_GT(run["prefill_s"], 0);
    EXPECT_GT(run["decode"]["attention_ms"], 0);
    EXPECT_LT(run["decode"]["attention_ms"], run["decode"]["total_ms"]);
    EXPECT_EQ(run["why"].is_null(), run["needle"]["found"] == true);
    if (!run["sparse"].is_null()) continue;
    EXPECT_EQ(run["output"], "Zara's favorite food is ramen.");
    EXPECT_EQ(run["same_as_exact"], true);
  }
  for (const char* kv : {"f32", "q8"}) {
    const Json k32 = Find(runs, kv, 32);
    EXPECT_EQ(k32["output"], "Zara's favorite food is ramen.");
    EXPECT_EQ(k32["same_as_exact"], true);
    EXPECT_EQ(k32["first_difference"], nullptr);
    EXPECT_GT(k32["mass_covered"], 0.9);
    EXPECT_LT(k32["mass_covered"], 1);

    const Json k1 = Find(runs, kv, 1);
    EXPECT_EQ(k1["needle"]["found"], false);
    EXPECT_GT(k1["first_difference"], 0);  // the first token is prefill's
    EXPECT_LT(k1["mass_covered"], 0.1);
    EXPECT_TRUE(
        Contains(k1["why"], "The only place went to block 3 by importance"))
        << k1["why"];
    EXPECT_TRUE(Contains(k1["why"], "blocks 31 and 32 were never read"));

    EXPECT_EQ(Find(runs, kv, 1, true)["needle"]["found"], false);
    // Fewer blocks are fewer bytes.
    double more = 1e18;
    for (const int k : {64, 32, 16, 8, 4, 2, 1}) {
      const Json row = Find(runs, kv, k);
      EXPECT_LT(row["kv"]["read_bytes"], more);
      more = row["kv"]["read_bytes"];
      EXPECT_EQ(row["ran_exact"], false);
    }
  }
  const std::string csv = ReadFile(dir_ / "a.csv");
  EXPECT_EQ(std::ranges::count(csv, '\n'), 1 + 19);
  EXPECT_TRUE(
      csv.starts_with("stage,model,seed,context,depth,needle.sentence"));
}

TEST_F(NeedleProgram, WithoutImportanceRecencyTookThePlace) {
  KVLAB_NEEDS_A_REAL_CPU("day10_needle_test has the sentence");
  const Json runs = Runs("--importance off --ks 1 --kv q8");
  const Json k1 = Find(runs, "q8", 1);
  EXPECT_EQ(k1["needle"]["found"], false);
  EXPECT_TRUE(
      Contains(k1["why"], "always went to the last block: recency took it"))
      << k1["why"];
  EXPECT_FALSE(Contains(k1["why"], "importance"));
}

/// If exact attention does not answer, no selection is to blame.
TEST_F(NeedleProgram, RawTellsTheTwoCausesApart) {
  KVLAB_NEEDS_A_REAL_CPU("day10_needle_test has the sentences");
  const Json runs = Runs("--raw --ks 32,1 --kv q8");
  EXPECT_EQ(runs[0]["needle"]["found"], false);
  for (const int k : {32, 1}) {
    EXPECT_TRUE(
        Contains(Find(runs, "q8", k)["why"], "exact attention misses it too"));
    EXPECT_TRUE(Contains(Find(runs, "q8", k)["why"], "chat template"));
  }
}

TEST_F(NeedleProgram, MarksWhatRanExact) {
  for (const char* options : {"--ks 99", "--ks 2 --dense-below 1000"}) {
    const Json runs = Runs(StrCat("--context 200 ", options));
    for (const Json& run : runs) {
      EXPECT_EQ(run["ran_exact"], true);
      EXPECT_EQ(run["same_as_exact"], true);
      EXPECT_NEAR(run["mass_covered"].get<double>(), 1, 1e-9);
      EXPECT_EQ(run["kv"]["read_bytes"],
                runs[run["kv"]["format"] == "f32" ? 0 : 4]["kv"]["read_bytes"]);
    }
  }
  const ProgramRun text = Run("--context 200 --ks 99 --kv f32");
  EXPECT_NE(text.out.find("k=99 =  "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("= ran exact"), std::string::npos);
}

TEST_F(NeedleProgram, PrintsBothTables) {
  const ProgramRun run = Run("--context 200");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  for (const char* part :
       {"The article's table on this machine", "three_pass", "online_softmax",
        "q8_single_pass", "sparse_topk k=32", "sparse_topk k=1 *",
        "What each budget reads", "sparse_topk k=64",
        "All exact stages give the same answer."}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part;
  }
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(NeedleProgram, ThreadsAndInstructionSetsChangeNoAnswer) {
  const auto answers = [&](const std::string& options) {
    Json kept = Json::array();
    for (Json run : Runs("--context 130 --ks 4,1 " + options)) {
      kept.push_back({run["output"], run["mass_covered"], run["kv"],
                      run["first_difference"], run["why"]});
    }
    return kept;
  };
  const Json one = answers("--threads 1");
  EXPECT_EQ(answers("--threads 3"), one);
  EXPECT_EQ(answers("--isa scalar"), one);
}

TEST_F(NeedleProgram, APromptOfOnesOwnHasNoNeedle) {
  const ProgramRun run =
      Run("--prompt 'Zara lives in Paris.' --max-tokens 1 --ks 1 --kv q8");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.find("Why"), std::string::npos);
  EXPECT_EQ(run.out.find("YES"), std::string::npos);
  EXPECT_EQ(run.out.find("nan"), std::string::npos);
}

// --- The grid
// ------------------------------------------------------------------

const char kGrid[] =
    "--grid --contexts 100,160 --depths 0,1 --ks 1,4 --seeds 2 --arms "
    "article,oracle,random ";

TEST_F(NeedleProgram, AResumedGridIsTheSameGrid) {
  const ProgramRun whole =
      Run(StrCat(kGrid, "--threads 1 --csv ", File("whole.csv"), " --journal ",
                 File("journal")));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(whole.err, "");
  const std::string journal = ReadFile(dir_ / "journal");
  EXPECT_EQ(std::ranges::count(journal, '\n'), 1 + 8);
  // As a crash leaves it: three units and a half.
  std::size_t end = 0;
  for (int line = 0; line < 4; ++line) end = journal.find('\n', end) + 1;
  std::ofstream(dir_ / "journal") << journal.substr(0, end + 40);
  const ProgramRun resumed = Run(StrCat(kGrid, "--csv ", File("resumed.csv"),
                                        " --journal ", File("journal")));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.out, whole.out);
  EXPECT_EQ(ReadFile(dir_ / "resumed.csv"), ReadFile(dir_ / "whole.csv"));
  EXPECT_EQ(ReadFile(dir_ / "journal"), journal);
  // And without one, with other threads.
  const ProgramRun plain =
      Run(StrCat(kGrid, "--threads 3 --csv ", File("plain.csv")));
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_EQ(ReadFile(dir_ / "plain.csv"), ReadFile(dir_ / "whole.csv"));
  // Settings that change results are other settings.
  EXPECT_TRUE(FailsWithOneLine(
      Run(StrCat(kGrid, "--n-probe 4 --journal ", File("journal"))), 2,
      "day10_needle", "n_probe is 8 there and 4 here"));
}

TEST_F(NeedleProgram, CtrlCLosesOneUnit) {
  KVLAB_NEEDS_A_REAL_CPU("AResumedGridIsTheSameGrid runs here");
  const std::string grid = StrCat(
      "--grid --contexts 300 --depths 0,0.5,1 --ks 1,4 --seeds 40 --arms "
      "article --threads 1 --journal ",
      File("journal"), " --csv ", File("grid.csv"));
  const ProgramRun run = RunCommand(
      StrCat(Quoted(KVLAB_NEEDLE), " ", grid,
             " & pid=$!; for i in $(seq 600); do "
             "[ $(grep -c seed ",
             File("journal"),
             " || :) -ge 3 ] && break; sleep 0.05; done 2>/dev/null; "
             "kill -INT $pid; wait $pid"),
      dir_.path());
  EXPECT_EQ(run.exit_code, 130) << run.err;
  EXPECT_NE(run.err.find("of 120 prompts; the same command goes on from there"),
            std::string::npos)
      << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_FALSE(Exists("grid.csv"));
  const std::string journal = ReadFile(dir_ / "journal");
  EXPECT_TRUE(journal.ends_with('\n'));
  EXPECT_GE(std::ranges::count(journal, '\n'), 3);
  EXPECT_LT(std::ranges::count(journal, '\n'), 1 + 120);
  EXPECT_EQ(Run(grid).exit_code, 0);
  EXPECT_TRUE(Exists("grid.csv"));
  EXPECT_TRUE(ReadFile(dir_ / "journal").starts_with(journal));
}

/// What is appended to a file without a name is lost: better told after one
/// prompt than found out after the last.
TEST_F(NeedleProgram, AJournalThatIsDeletedMeanwhileIsTold) {
  KVLAB_NEEDS_A_REAL_CPU("day10_needle_test has the journal alone");
  const ProgramRun run = RunCommand(
      StrCat(Quoted(KVLAB_NEEDLE),
             " --grid --contexts 300 --depths 0,0.5,1 --ks 1,4 --seeds 50 "
             "--arms article --threads 1 --journal ",
             File("journal"), " & pid=$!; for i in $(seq 600); do [ -s ",
             File("journal"), " ] && break; sleep 0.05; done; rm ",
             File("journal"), "; wait $pid"),
      dir_.path());
  EXPECT_TRUE(FailsWithOneLine(run, 1, "day10_needle",
                               "it was deleted while the grid ran; what was "
                               "done so far is lost"));
}

TEST_F(NeedleProgram, AModelTrainedAgainIsAnotherModel) {
  const std::filesystem::path model = dir_ / "model";
  std::filesystem::copy(KVLAB_SOURCE_DIR "/common/lab_model", model);
  const std::string grid = StrCat(
      "--grid --contexts 100 --depths 0 --ks 1 --seeds 1 --arms article "
      "--max-tokens 1 --model ",
      Quoted(model.string()), " --journal ", File("journal"));
  ASSERT_EQ(Run(grid).exit_code, 0);
  const std::string journal = ReadFile(dir_ / "journal");
  {
    std::fstream file(model / "model.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.peek() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(last);
  }
  EXPECT_TRUE(FailsWithOneLine(Run(grid), 2, "day10_needle",
                               "it belongs to other settings: file "
                               "model.safetensors is \""));
  EXPECT_EQ(ReadFile(dir_ / "journal"), journal);
}

TEST_F(NeedleProgram, GridRowsAsJson) {
  const Json runs = Runs(kGrid);
  ASSERT_EQ(runs.size(), 4u * (1 + 3 * 2));
  for (const Json& run : runs) {
    EXPECT_EQ(run["prompts"], 2);
    EXPECT_LE(run["found"], 2);
    if (run["k"] == 4 && run["context"] == 160) {
      EXPECT_EQ(run["ran_exact"], false);  // 160 and 40 tokens are 7 blocks
    }
  }
}

TEST_F(NeedleProgram, DrawsThePictures) {
  if (RunCommand("command -v gnuplot", dir_.path()).exit_code != 0) {
    KVLAB_SKIP_OR_FAIL("gnuplot", "not installed; install gnuplot-nox");
  }
  const ProgramRun run = Run(
      StrCat(kGrid, "--svg ", File("a.svg"), " --svg-arms ", File("b.svg")));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  for (const char* name : {"a.svg", "b.svg"}) {
    const std::string svg = ReadFile(dir_ / name);
    EXPECT_TRUE(svg.starts_with("<?xml"));
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
  }
  EXPECT_NE(ReadFile(dir_ / "a.svg").find("k = 4"), std::string::npos);
  EXPECT_NE(ReadFile(dir_ / "b.svg").find("oracle"), std::string::npos);
}

TEST_F(NeedleProgram, MissingGnuplotIsToldBeforeTheWork) {
  const ProgramRun run = Run(
      StrCat(kGrid, "--svg ", File("a.svg"), " --journal ", File("journal")),
      "PATH=" + File("absent"));
  EXPECT_TRUE(FailsWithOneLine(run, 1, "day10_needle", "gnuplot-nox"));
  EXPECT_FALSE(Exists("journal"));
  EXPECT_FALSE(Exists("a.svg"));
}

TEST_F(NeedleProgram, RefusesBadInputWithOneLine) {
  const auto fails = [&](const std::string& arguments, int exit_code,
                         const std::string& part) {
    EXPECT_TRUE(
        FailsWithOneLine(Run(arguments), exit_code, "day10_needle", part))
        << arguments;
  };
  fails("--ks 0", 2, "--ks");
  fails("--ks 1 2", 2, "not expected: 2");
  fails("--ks 1 --ks 2", 2, "--ks");
  fails("--ks 1,", 2, "--ks: expected values with single commas");
  fails("--ks ,", 2, "--ks: expected values with single commas");
  fails("--ks ''", 2, "--ks: expected values");
  fails(StrCat("--ks 1", std::string(128, ',')), 2, "at most 64 values");
  fails("--ks 1,-2", 2, "found \"-2\"");
  fails("--grid --contexts 64 --depths 0 1", 2, "not expected: 1");
  fails("--grid --contexts 64,,65", 2, "--contexts: expected values");
  fails("--grid --arms oracle,,random", 2,
        "--arms: expected values with single commas between them, found "
        "\"oracle,,random\"");
  fails("--grid --arms oracle random", 2, "not expected: random");
  for (const char* option : {"--journal", "--svg", "--svg-arms", "--csv"}) {
    fails(StrCat("--grid ", option, " -"), 2,
          StrCat(option, ": expected the name of a file"));
  }
  fails("--ks 4,4", 2, "--ks: 4 stands in the list twice");
  fails("--kv f16", 2, "--kv");
  fails("--block-size 33", 2, "--block-size");
  fails("--importance some", 2, "--importance");
  fails("--context 9000", 2, "positions for 8192");
  fails("--csv ''", 2, "--csv");
  fails("--isa no", 2, "no");
  fails("--seeds 3", 2, "requires --grid");
  fails("--svg a.svg", 2, "requires --grid");
  fails("--grid --context 512", 2, "excludes");
  fails("--grid --prompt x", 2, "excludes");
  fails("--grid --kv both", 2, "--kv both");
  fails("--grid --seeds 0", 2, "--seeds");
  fails("--grid --depths 2", 2, "--depths");
  fails("--grid --depths 0.5,0.5", 2, "twice");
  fails("--grid --contexts 9000", 2, "positions for 8192");
  fails("--grid --arms oracle,best", 2, "best");
  fails("--grid --arms importance --importance off", 2, "--importance off");
  fails("--grid --arms oracle --svg a.svg", 2, "--arms");
  fails("--grid --question who", 2, "--needle");
  fails("--model " + File("absent"), 1, "absent");
  fails("--csv " + File("absent/x"), 1, "absent/x: cannot be written");
  fails(StrCat("--grid --csv ", File("x"), " --journal ", File("x")), 2,
        "named by both");
  fails("--grid --contexts 5", 2, "--contexts 5 with depth 0 and seed 1: ");
  fails("--grid --contexts 64,65,66 --seeds 100000 --depths 0,0.1,0.2,1", 2,
        "--contexts, --depths and --seeds: expected at most 1000000 prompts "
        "together, found 3 x 4 x 100000 = 1200000");
  fails("--grid --seeds 2 --seed 18446744073709551615", 2,
        "--seed 18446744073709551615 and --seeds 2: the last seed would be "
        "beyond 18446744073709551615");
}

/// Of a length that only some choices of facts give, the first that fails is
/// named before anything is run, and no journal is begun.
TEST_F(NeedleProgram, APromptThatCannotBeBuiltIsToldBeforeTheWork) {
  const ProgramRun run =
      Run("--grid --contexts 45 --depths 0.5 --seeds 50 --ks 1 --arms article "
          "--journal " +
          File("journal"));
  EXPECT_TRUE(FailsWithOneLine(run, 2, "day10_needle",
                               "--contexts 45 with depth 0.5 and seed "));
  EXPECT_NE(run.err.find("no choice of facts"), std::string::npos) << run.err;
  EXPECT_FALSE(Exists("journal"));
}

TEST_F(NeedleProgram, TextThatIsNoUtf8BeginsNoJournal) {
  for (const char* option : {"--needle", "--question", "--fact"}) {
    const bool question = option == std::string_view("--question");
    const ProgramRun run = Run(StrCat(
        kGrid, question ? "--needle 'Zara lives in Paris.' " : "", option,
        " \"$(printf 'Zara lives in \\377.')\" --journal ", File("journal")));
    EXPECT_TRUE(FailsWithOneLine(run, 2, "day10_needle",
                                 StrCat(option, ": expected UTF-8")));
    EXPECT_FALSE(Exists("journal"));
  }
}

/// As all programs do, and a grid once, not for each of its prompts.
TEST_F(NeedleProgram, WarnsByName) {
  const std::string fact =
      "--needle 'Zara lives in Paris.' --fact 'Leo was born in Paris.' --ks 1 "
      "--max-tokens 1 ";
  const std::string warning =
      "day10_needle: warning: --fact \"Leo was born in Paris.\" holds the "
      "value "
      "that is looked for\n";
  EXPECT_EQ(Run(fact + "--context 100 --kv q8").err, warning);
  EXPECT_EQ(Run(fact + "--grid --contexts 100 --depths 0,1 --seeds 2 --arms "
                       "article")
                .err,
            warning);
}

}  // namespace
}  // namespace kvlab
