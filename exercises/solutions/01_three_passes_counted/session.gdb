# The first call of Attend, before pass 1.
stop-at scores
set $start = $bpnum
run
disable $start
print input
print kv

# Every row of K and V from here on, and of K[5] the calls.
set $rows = 0
set $key = 0
break kvlab::KvHeadView::Keys
commands
  silent
  set $rows = $rows + count
  set $last = count
  if t <= 5 && 5 < t + count
    set $key = $key + 1
  end
  continue
end
break kvlab::KvHeadView::Values
commands
  silent
  set $rows = $rows + count
  continue
end

# Every float of scores, and of one score the calls.
set $score = &heads[0].scores[5]
set $floats = 0
set $reads = 0
break *primitives_.max
commands
  silent
  set $floats = $floats + n
  if x <= $score && $score < x + n
    set $reads = $reads + 1
  end
  continue
end
break *primitives_.exp_and_sum
commands
  silent
  set $floats = $floats + n
  if x <= $score && $score < x + n
    set $reads = $reads + 1
  end
  continue
end
break *primitives_.accumulate_values
commands
  silent
  set $floats = $floats + count * values.tokens
  if heads[0].weights <= $score && $score < heads[0].weights + values.tokens
    set $reads = $reads + 1
  end
  continue
end

# The next call of Attend is the end of this one.
tbreak kvlab::ThreePass::Attend
continue
answer last_tile_tokens $last
answer reads_of_a_key $key
answer reads_of_a_score $reads
answer score_bytes_read $floats * 4
answer kv_bytes_call $rows * 128 * 4
delete 4-6

# And the other calls of the step.
tbreak _exit
continue
answer kv_bytes_step $rows * 128 * 4
