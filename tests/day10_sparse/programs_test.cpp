/// day10_sparse_topk as a program.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/loader/safetensors.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/program.h"

namespace kvlab {
namespace {

class Day10Programs : public testing::Test {
 protected:
  ProgramRun Sparse(const std::string& arguments) {
    return RunCommand(StrCat(Quoted(KVLAB_SPARSE), " ", arguments),
                      dir_.path());
  }
  nlohmann::json Json(const std::string& arguments) {
    const ProgramRun run = Sparse("--json " + arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return nlohmann::json::parse(run.out, nullptr, false);
  }
  std::string File(const std::string& name) {
    return Quoted((dir_ / name).string());
  }
  void ExpectUsageError(const std::string& arguments,
                        const std::string& message) {
    EXPECT_TRUE(
        FailsWithOneLine(Sparse(arguments), 2, "day10_sparse_topk", message))
        << arguments;
  }
  TempDir dir_;
};

/// The course's own file, byte for byte, on whatever machine this is.
TEST_F(Day10Programs, AnswersTheNeedleQuestion) {
  KVLAB_NEEDS_A_REAL_CPU(
      "the part `bits` compares this dump with the course's");
  const auto json = Json("--dump " + File("default"));
  EXPECT_EQ(json["stage"], "sparse_topk");
  EXPECT_EQ(json["output"], "Zara's favorite food is ramen.");
  EXPECT_EQ(json["kv"]["format"], "q8");
  EXPECT_EQ(json["tile"], nullptr);
  EXPECT_EQ(json["sparse"], nlohmann::json::parse(R"({"k": 32, "block_size": 32,
                "n_probe": 8, "importance": "raw", "sparse_prefill": false,
                "dense_below": 0})"));
  const ProgramRun golden = RunCommand(
      StrCat(Quoted(KVLAB_COMPARE), " --golden ", KVLAB_SOURCE_DIR,
             "/tests/golden/day10_sparse_topk.sha256 ", File("default")),
      dir_.path());
  EXPECT_EQ(golden.exit_code, 0) << golden.out << golden.err;
}

/// All blocks: the same attention and logits as the exact stage of the format.
TEST_F(Day10Programs, AllBlocksGiveTheDumpOfTheExactStage) {
  const std::string options = " --context 100 --max-tokens 4 --dump ";
  for (const auto& [kv, exact] :
       {std::pair{"f32", KVLAB_THREE_PASS}, std::pair{"q8", KVLAB_TWO_PASS}}) {
    ASSERT_EQ(
        RunCommand(StrCat(Quoted(exact), options, File("exact")), dir_.path())
            .exit_code,
        0);
    for (const char* all :
         {"--sparse-k 4", "--sparse-k 1 --dense-below 1000",
          "--sparse-k 99 --block-size 16 --importance off --sparse-prefill"}) {
      ASSERT_EQ(
          Sparse(StrCat("--kv ", kv, " ", all, options, File("all"))).exit_code,
          0);
      const ProgramRun compare = RunCommand(
          StrCat(Quoted(KVLAB_COMPARE), " ", File("exact"), " ", File("all")),
          dir_.path());
      EXPECT_EQ(compare.exit_code, 0) << kv << " " << all << compare.out;
    }
    // And one block does not.
    ASSERT_EQ(Sparse(StrCat("--kv ", kv, " --sparse-k 1", options, File("one")))
                  .exit_code,
              0);
    EXPECT_EQ(RunCommand(StrCat(Quoted(KVLAB_COMPARE), " ", File("exact"), " ",
                                File("one")),
                         dir_.path())
                  .exit_code,
              1);
  }
}

TEST_F(Day10Programs, SaysWhenItRanExact) {
  // 100 tokens and 3 steps: 4 blocks of 32.
  const std::string shape = "--context 100 --max-tokens 4 --ignore-eos ";
  EXPECT_EQ(Json(shape + "--sparse-k 4")["ran_exact"], true);
  EXPECT_EQ(Json(shape + "--sparse-k 3")["ran_exact"], false);
  EXPECT_EQ(Json(shape + "--sparse-k 1 --dense-below 104")["ran_exact"], true);
  EXPECT_EQ(Json(shape + "--sparse-k 1 --dense-below 103")["ran_exact"], false);
  EXPECT_NE(Sparse(shape + "--sparse-k 4").out.find("ran exact"),
            std::string::npos);
}

TEST_F(Day10Programs, ThreadsAndChunksChangeNothing) {
  const std::string options =
      " --context 200 --sparse-k 3 --sparse-prefill --max-tokens 5 --dump ";
  ASSERT_EQ(Sparse("--threads 1" + options + File("a")).exit_code, 0);
  for (const char* other :
       {"--threads 3", "--prefill-chunk 7", "--threads 2 --prefill-chunk 1"}) {
    ASSERT_EQ(Sparse(other + options + File("b")).exit_code, 0);
    EXPECT_EQ(ReadFile(dir_ / "a"), ReadFile(dir_ / "b")) << other;
  }
}

TEST_F(Day10Programs, TraceTellsWhatBecameOfEachBlock) {
  ASSERT_EQ(Sparse("--context 256 --sparse-k 4 --trace " + File("trace.json") +
                   " --trace-layer all --trace-head all")
                .exit_code,
            0);
  const auto trace = nlohmann::json::parse(ReadFile(dir_ / "trace.json"));
  EXPECT_EQ(trace["stage"], "sparse_topk");
  EXPECT_EQ(trace["sparse"]["k"], 4);
  ASSERT_EQ(trace["calls"].size(), 3u * 4);
  for (const auto& call : trace["calls"]) {
    ASSERT_EQ(call["block_tokens"], 32);
    ASSERT_EQ(call["blocks"].size(), 9u);  // of 257 tokens
    int taken = 0, reserved = 0;
    for (const auto& block : call["blocks"]) {
      taken += block["taken"].get<bool>();
      reserved += block["reason"] == "importance";
    }
    EXPECT_EQ(taken, 4);
    EXPECT_EQ(reserved, 2);
    EXPECT_TRUE(call["blocks"][8]["taken"].get<bool>());
  }
  ASSERT_EQ(Sparse("--context 64 --importance off --trace " + File("off.json"))
                .exit_code,
            0);
  const auto off = nlohmann::json::parse(ReadFile(dir_ / "off.json"));
  EXPECT_EQ(off["calls"][0]["blocks"][0]["importance"], nullptr);
}

/// The README's map: layer 2 finds the needle, on whatever machine this is.
TEST_F(Day10Programs, MapShowsWhatEachHeadTook) {
  const ProgramRun run = Sparse("--sparse-k 4 --map");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(run.out.ends_with(R"(
taken               I importance, P probe, R recency
dropped             . lower_probe, x evicted_by_recency
needle              N blocks 31-32 (tokens 1022-1028)

step 0, query of token 2061 "Zara", over 65 blocks of 32 tokens
layer  head  0         10        20        30        40        50        60
                                            NN
0      0     I..I...............................P............................P
0      1     I..I.....................................................P......P
0      2     I..I....................................................P.......P
0      3     I..I........................P...................................P
1      0     I..I...........................................................PP
1      1     I..I.............................................P..............P
1      2     I..I.....P......................................................P
1      3     I..I....................................................P.......P
2      0-1   I..I............................P...............................P
2      2     I..I............................P......................x........R
2      3     I..I............................Px..............................R
)")) << run.out;
  // The calls that were chosen, of a prompt without a needle; a trace goes on
  // choosing what it would alone.
  const ProgramRun some = Sparse(
      "--prompt Zara --ignore-eos --max-tokens 4 --map --trace-step all "
      "--trace-head 1 --trace " +
      File("trace.json"));
  ASSERT_EQ(some.exit_code, 0) << some.err;
  EXPECT_EQ(some.out.find("needle"), std::string::npos) << some.out;
  EXPECT_NE(some.out.find("\nstep 2, query"), std::string::npos);
  EXPECT_NE(some.out.find("\n2      1     I\n"), std::string::npos);
  EXPECT_EQ(some.out.find("\n2      0 "), std::string::npos);
  const auto trace = nlohmann::json::parse(ReadFile(dir_ / "trace.json"));
  EXPECT_EQ(trace["calls"].size(), 3u);
  EXPECT_EQ(trace["calls"][0]["layer"], 0);
}

TEST_F(Day10Programs, MapAndTraceAreChosenAlike) {
  ExpectUsageError("--trace-layer 1",
                   "--trace-layer requires --trace or --map");
  ExpectUsageError("--map --trace-layer 3", "the model has 3 layers");
  ExpectUsageError("--map --json", "--json");
  ExpectUsageError("--map --show-prompt", "--show-prompt");
  ExpectUsageError("--map-svg= --context 64", "--map-svg");
  ExpectUsageError("--map-svg " + File("x") + " --show-prompt",
                   "--show-prompt");
  ExpectUsageError("--map-svg " + File("x") + " --trace " + File("x"),
                   "is named by both");
  ExpectUsageError("--dump " + File("x") + " --map-svg " + File("x"),
                   "is named by both");
  EXPECT_TRUE(FailsWithOneLine(Sparse("--map-svg /nonexistent/x"), 1,
                               "day10_sparse_topk", "/nonexistent/x"));
  const ProgramRun none = Sparse("--context 64 --map --trace-step 99");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(
      none.err.find("--map: nothing to show: there was no decode step 99"),
      std::string::npos)
      << none.err;
  EXPECT_FALSE(std::filesystem::exists(dir_ / "x"));
}

TEST_F(Day10Programs, MapDrawsThePicture) {
  if (RunCommand("command -v gnuplot", dir_.path()).exit_code != 0) {
    KVLAB_SKIP_OR_FAIL("gnuplot", "not installed; install gnuplot-nox");
  }
  const ProgramRun run =
      Sparse("--json --context 512 --sparse-k 4 --trace-layer 2 --map-svg " +
             File("x.svg"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(nlohmann::json::accept(run.out));
  const std::string svg = ReadFile(dir_ / "x.svg");
  EXPECT_TRUE(svg.starts_with("<?xml"));
  for (const char* part : {"</svg>", "k = 4, 17 blocks", ">needle<",
                           ">layer 2<", ">block of 32 tokens<",
                           ">evicted_by_recency<", "lab_model, 512 tokens"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(svg.find(">layer 1<"), std::string::npos);
}

/// Before the work, and without a file.
TEST_F(Day10Programs, MapSaysHowToGetGnuplot) {
  const ProgramRun run =
      RunCommand(StrCat("PATH=", File("absent"), " ", Quoted(KVLAB_SPARSE),
                        " --map --map-svg ", File("x.svg")),
                 dir_.path());
  EXPECT_TRUE(FailsWithOneLine(run, 1, "day10_sparse_topk",
                               "apt-get install gnuplot-nox"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "x.svg"));
}

TEST_F(Day10Programs, WrongOptions) {
  ExpectUsageError("--sparse-k 0", "--sparse-k");
  ExpectUsageError("--sparse-k", "--sparse-k");
  ExpectUsageError("--block-size 33", "--block-size");
  ExpectUsageError("--n-probe -1", "--n-probe");
  ExpectUsageError("--importance some", "--importance");
  ExpectUsageError("--kv f16", "--kv");
  ExpectUsageError("--tile 1", "--tile");
  ExpectUsageError("--rescan", "--rescan");
}

}  // namespace
}  // namespace kvlab
