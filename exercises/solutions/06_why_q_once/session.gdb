# The first call: layer 0, KV head 0. Queries of the prompt were quantised before.
stop-at quantise_q
run
delete
set $n = input.position + 1

# Each segment in the rest of the call: a stop is counted, and the program goes on.
python
stops = {}


class Count(gdb.Breakpoint):
    def stop(self):
        stops[self.name] = stops.get(self.name, 0) + self.what()
        return False


def count(where, name, what=lambda: 1):
    stop = Count(where)
    stop.name, stop.what = name, what


def tokens():
    return int(gdb.selected_frame().read_var("tokens"))


def kv_heads():
    return int(gdb.parse_and_eval("this->shape_.kv_heads"))


from kvlab_values import places_of

for marker in "q8_single_pass.cpp:score", "online_softmax.cpp:rescale":
    count(places_of(marker)[0], marker)
count(places_of("q8_single_pass.cpp:score")[0], "tokens", tokens)
count(
    "kvlab::QuantisedQuery::QuantisedQuery"
    "(kvlab::Primitives const&, float const*, int)",
    "queries",
)
count("kvlab::KvCache::Append", "keys", kv_heads)
end
stop-at q8_single_pass.cpp:normalise
continue
python
gdb.execute("answer quantise_q 1")
gdb.execute("answer score %d" % stops["q8_single_pass.cpp:score"])
gdb.execute("answer rescale %d" % stops["online_softmax.cpp:rescale"])
gdb.execute("answer normalise 1")
gdb.execute("answer key_scale_uses 2 * %d" % stops["tokens"])
scales = [
    float(gdb.parse_and_eval("kv.key_scales[%d]" % t))
    for t in range(int(gdb.parse_and_eval("$n")))
]
gdb.execute("answer too_large %d" % sum(s > scales[0] for s in scales))
end
expect $n == n

# The other calls of the step: six times normalise in all. Layer 0 had appended a key
# for each of the 2 KV heads before the first of them.
continue 5
python
gdb.execute("answer queries %d" % stops["queries"])
gdb.execute("answer keys %d + 2" % stops["keys"])
end
answer why "one_query"
