/// The programs of Day 9 side by side: one answer, four ways.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/lab/cli.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/compare.h"
#include "tests/support/program.h"
#include "tests/support/tensors.h"

namespace kvlab {
namespace {

class Day09Programs : public testing::Test {
 protected:
  ProgramRun Lab(const std::string& program, const std::string& arguments) {
    return RunCommand(StrCat(Quoted(program), " ", arguments), dir_.path());
  }
  nlohmann::json Json(const std::string& program,
                      const std::string& arguments) {
    const ProgramRun run = Lab(program, arguments + " --json");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return nlohmann::json::parse(run.out);
  }
  /// The dump of a short run.
  SafetensorsFile Dump(const std::string& program,
                       const std::string& arguments) {
    const auto file = dir_ / StrCat("dump", ++dumps_);
    const ProgramRun run =
        Lab(program, StrCat("--context 100 --max-tokens 4 ", arguments,
                            " --dump ", Quoted(file.string())));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return SafetensorsFile::Open(file);
  }
  int dumps_ = 0;
  TempDir dir_;
};

constexpr const char* kSentence = "Zara's favorite food is ramen.";

TEST_F(Day09Programs, EveryStageAnswersTheNeedleQuestion) {
  KVLAB_NEEDS_A_REAL_CPU(
      "the part `bits` compares this dump with the course's");
  struct Expected {
    const char* program;
    const char* arguments;
    const char* stage;
    const char* format;
    std::int64_t row_bytes;  // of a key or value at head_dim 128
    nlohmann::json tile;
  };
  for (const Expected& e : {
           Expected{KVLAB_THREE_PASS, "", "three_pass", "f32", 512, nullptr},
           Expected{KVLAB_ONLINE, "", "online_softmax", "f32", 512, 32},
           Expected{KVLAB_ONLINE, "--tile 1", "online_softmax", "f32", 512, 1},
           Expected{KVLAB_Q8, "", "q8_single_pass", "q8", 132, 32},
           Expected{KVLAB_Q8, "--tile 1", "q8_single_pass", "q8", 132, 1},
           Expected{KVLAB_TWO_PASS, "", "two_pass", "q8", 132, nullptr},
           Expected{KVLAB_TWO_PASS, "--rescan", "two_pass", "q8", 132, nullptr},
       }) {
    const std::string dump = Quoted((dir_ / "default").string());
    const auto json = Json(e.program, StrCat(e.arguments, " --dump ", dump));
    // The course's own file, byte for byte, on whatever machine this is.
    if (std::string(e.arguments) != "--rescan") {
      const ProgramRun golden =
          Lab(KVLAB_COMPARE,
              StrCat("--golden ", KVLAB_SOURCE_DIR, "/tests/golden/day09_",
                     e.stage, e.tile == 1 ? "_tile1" : "", ".sha256 ", dump));
      EXPECT_EQ(golden.exit_code, 0) << golden.out << golden.err;
    }
    EXPECT_EQ(json["stage"], e.stage);
    EXPECT_EQ(json["output"], kSentence) << e.stage;
    EXPECT_EQ(json["needle"]["found"], true);
    EXPECT_EQ(json["needle"]["verbatim"], true);
    EXPECT_EQ(json["kv"]["format"], e.format);
    // 2,061 prompt tokens and the answer's but the end token; K and V, 3
    // layers, 2 KV heads.
    const std::int64_t tokens =
        2061 + json["tokens"]["generated"].get<std::int64_t>();
    EXPECT_EQ(json["kv"]["bytes"], tokens * 2 * 3 * 2 * e.row_bytes);
    EXPECT_EQ(json["tile"], e.tile);
  }
}

/// What a stage does not have, its dump says; what it has, is there.
TEST_F(Day09Programs, DumpsSayWhatIsNotMaterialised) {
  const auto check = [&](const SafetensorsFile& dump,
                         const std::string& absent) {
    EXPECT_EQ(dump.metadata().at("not_materialised"), absent);
    for (const char* name : {"scores", "weights"}) {
      EXPECT_EQ(dump.Find(name) == nullptr, !absent.empty()) << name;
    }
    EXPECT_NE(dump.Find("attention"), nullptr);
  };
  check(Dump(KVLAB_THREE_PASS, ""), "");
  check(Dump(KVLAB_ONLINE, ""), "scores weights");
  check(Dump(KVLAB_Q8, ""), "scores weights");
  check(Dump(KVLAB_TWO_PASS, "--rescan"), "scores weights");
  check(Dump(KVLAB_TWO_PASS, ""), "");
}

/// Stage against stage on a real model: the issue of every lesson. The bounds
/// are those of the stages' own tests; logits add a few more roundings.
TEST_F(Day09Programs, StagesAgreeOnARealModel) {
  const auto attention = [&](const std::string& program,
                             const std::string& arguments) {
    return Values<float>(Dump(program, arguments), "attention");
  };
  const auto three = attention(KVLAB_THREE_PASS, "");
  const auto two = attention(KVLAB_TWO_PASS, "");
  EXPECT_TRUE(SameBits(attention(KVLAB_TWO_PASS, "--rescan"), two));
  for (const char* tile : {"--tile 1", "--tile 32"}) {
    EXPECT_TRUE(
        WithinRelativeMax<float>(attention(KVLAB_ONLINE, tile), three, 2e-6));
    EXPECT_TRUE(WithinRelativeMax<float>(attention(KVLAB_Q8, tile), two, 2e-6));
  }
  // q8 is another cache: close, and not the same.
  EXPECT_TRUE(WithinRelativeMax<float>(two, three, 5e-2));
  EXPECT_FALSE(WithinRelativeMax<float>(two, three, 1e-4));
}

/// A trace holds every score once, in order, and the recurrence that its tiles
/// show is the lesson's.
TEST_F(Day09Programs, TracesShowTheRunningSoftmax) {
  for (const int tile : {1, 32}) {
    const ProgramRun run =
        Lab(KVLAB_Q8, StrCat("--context 100 --tile ", tile, " --trace ",
                             Quoted((dir_ / "trace.json").string()),
                             " --trace-layer all --trace-head all"));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto trace = nlohmann::json::parse(ReadFile(dir_ / "trace.json"));
    EXPECT_EQ(trace["stage"], "q8_single_pass");
    EXPECT_EQ(trace["tile"], tile);
    EXPECT_GT(trace["tokens"].size(), 100u);
    EXPECT_EQ(trace["tokens"][0], "<|im_start|>");
    ASSERT_EQ(trace["calls"].size(), 3u * 4);
    for (const auto& call : trace["calls"]) {
      EXPECT_EQ(call["step"], 0);
      EXPECT_EQ(call["position"], 100);
      int tokens = 0;
      double M = 0, S = 0;
      for (const auto& t : call["tiles"]) {
        EXPECT_EQ(t["first_token"], tokens);
        const auto scores = t["scores"].get<std::vector<double>>();
        const double m = *std::ranges::max_element(scores);
        EXPECT_EQ(t["M_before"].is_null(), tokens == 0);
        if (tokens == 0) {
          M = m;
        } else {
          EXPECT_EQ(t["M_before"], M);
          EXPECT_EQ(t["rescaled"], m > M);
          const double c = std::exp(M - std::max(m, M));
          EXPECT_NEAR(t["factor"].get<double>(), c, 1e-6);
          S *= c;
          M = std::max(m, M);
        }
        for (const double score : scores) S += std::exp(score - M);
        EXPECT_EQ(t["M"], M);
        EXPECT_NEAR(t["S"].get<double>(), S, 1e-5 * S);
        tokens += static_cast<int>(scores.size());
      }
      EXPECT_EQ(tokens, 101);
    }
  }
  // The same for a page; one call where nothing else is asked.
  const ProgramRun run = Lab(
      KVLAB_ONLINE,
      StrCat("--context 64 --trace ", Quoted((dir_ / "trace.js").string())));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string script = ReadFile(dir_ / "trace.js");
  const std::string begin =
      "(window.kvlabTraces = window.kvlabTraces || []).push(";
  ASSERT_TRUE(script.starts_with(begin) && script.ends_with(");\n"));
  const auto trace = nlohmann::json::parse(
      script.substr(begin.size(), script.size() - begin.size() - 3));
  EXPECT_EQ(trace["calls"].size(), 1u);

  const auto fails = [&](const std::string& arguments, int exit_code,
                         const std::string& part) {
    EXPECT_TRUE(FailsWithOneLine(
        Lab(KVLAB_ONLINE,
            StrCat("--json --context 64 ", arguments, " >/dev/null")),
        exit_code, "day09_online_softmax", part))
        << arguments;
  };
  const std::string to = StrCat("--trace ", Quoted((dir_ / "x").string()));
  fails(to + " --dump " + Quoted((dir_ / "." / "x").string()), 2,
        "is named by both");
  fails("--tile 1e0", 2, "expected a whole number");
  fails(to + " --trace-layer 3", 2, "the model has 3 layers");
  fails(to + " --trace-head 4", 2, "the model has 4 query heads");
  fails(to + " --trace-step 99", 1, "no decode step 99");
  fails(to + " --trace-step some", 2, "--trace-step");
  fails(to + " --max-tokens 1", 1, "nothing to write");
  fails("--trace-layer 1", 2, "--trace");
  fails("--trace /nonexistent/x", 1, "/nonexistent/x");
  fails("--trace -", 2, "--trace: expected the name of a file");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "x"));
  // A trace that cannot be written leaves the old dump where it is.
  WriteFile(dir_ / "dump", "before");
  fails(
      StrCat(to, " --trace-step 99 --dump ", Quoted((dir_ / "dump").string())),
      1, "no decode step 99");
  EXPECT_EQ(ReadFile(dir_ / "dump"), "before");
}

/// Through a pipe and from a file; both ends give the same bits.
TEST_F(Day09Programs, StreamingAttendsToWhatArrives) {
  const auto file = [&](const char* name) {
    return Quoted((dir_ / name).string());
  };
  const ProgramRun pipe = RunCommand(
      StrCat(Quoted(KVLAB_STREAMING), " --produce - --context 100 --kv f32",
             " --layer 1 --no-length --dump ", file("a"), " | ",
             Quoted(KVLAB_STREAMING), " - --json --dump ", file("b")),
      dir_.path());
  ASSERT_EQ(pipe.exit_code, 0) << pipe.err;
  EXPECT_EQ(ReadFile(dir_ / "a"), ReadFile(dir_ / "b"));
  const auto json = nlohmann::json::parse(pipe.out);
  EXPECT_EQ(json["tokens"]["arrived"], 101);
  EXPECT_TRUE(json["tokens"]["announced"].is_null());

  ASSERT_EQ(Lab(KVLAB_STREAMING, StrCat("--produce ", file("s"),
                                        " --context 100 --dump ", file("a")))
                .exit_code,
            0);
  const ProgramRun read =
      Lab(KVLAB_STREAMING, StrCat(file("s"), " --dump ", file("b")));
  EXPECT_EQ(read.exit_code, 0) << read.err;
  EXPECT_TRUE(Has(read.out, "tokens arrived      101\n")) << read.out;
  EXPECT_EQ(ReadFile(dir_ / "a"), ReadFile(dir_ / "b"));

  std::filesystem::remove(dir_ / "b");
  const ProgramRun cut =
      RunCommand(StrCat("head -c 20000 ", file("s"), " | ",
                        Quoted(KVLAB_STREAMING), " - --dump ", file("b")),
                 dir_.path());
  EXPECT_TRUE(FailsWithOneLine(cut, 1, "day09_streaming", "whole tokens"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "b"));
  const auto fails = [&](const std::string& arguments, int exit_code,
                         const std::string& part) {
    EXPECT_TRUE(FailsWithOneLine(Lab(KVLAB_STREAMING, arguments), exit_code,
                                 "day09_streaming", part))
        << arguments;
  };
  fails("", 2, "give a stream");
  const std::string same = file("b");
  fails(StrCat("--produce ", same, " --dump ", same), 2, "is named by both");
  fails(StrCat(file("s"), " --dump ", file("s")), 2, "FILE reads");
  fails(file("s") + " --dump -", 2, "--dump: expected the name of a file");
  fails("--produce /nonexistent/x --context 64", 1, "/nonexistent/x");
  // A dump that cannot be written leaves the old stream where it is.
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  const std::string before = ReadFile(dir_ / "s");
  fails(StrCat("--produce ", file("s"), " --context 64 --dump ", file("fifo")),
        1, "fifo: cannot be written: a pipe that nobody reads");
  EXPECT_EQ(ReadFile(dir_ / "s"), before);
  EXPECT_TRUE(FailsWithOneLine(Lab(KVLAB_STREAMING, "--produce - --layer 3"), 2,
                               "day09_streaming", "the model has 3"));
}

TEST_F(Day09Programs, RefuseWhatMeansNothingForThem) {
  const auto fails = [&](const char* program, const std::string& arguments,
                         const std::string& part) {
    const ProgramRun run = Lab(program, arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_TRUE(Has(run.err, part)) << run.err;
  };
  fails(KVLAB_ONLINE, "--tile 7", "--tile");
  fails(KVLAB_ONLINE, "--tile 0", "--tile");
  fails(KVLAB_Q8, "--rescan", "--rescan");
  fails(KVLAB_TWO_PASS, "--tile 1", "--tile");
  fails(KVLAB_THREE_PASS, "--trace x", "--trace");
}

}  // namespace
}  // namespace kvlab
