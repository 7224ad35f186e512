# The first call of layer 2 in the first decode step: heads 0 and 1.
break kvlab::SparseTopK::AttendGroup if group.first.layer == 2
run
stop-at probe
continue

# On paper, from the three numbers that the function is given.
set $begin = (tokens - 1) / block_tokens * block_tokens
set $length = tokens - $begin
set $step = $length / n_probe
if $step < 1
  set $step = 1
end
answer step $step
answer probed ($length + $step - 1) / $step
answer last_probed tokens - 1 - ($length - 1) % $step

# Each call of Dots multiplies up to 32 keys, every step-th from t on.
break kvlab::TileReader::Dots
continue
while t != $begin
  continue
end
set $t = t
set $count = count
expect step == $step
finish
# dots_of[0] is head 0, dots_of[1] is head 1.
print -elements 32 -- *dots_of[1]@$count
set $best = 0
set $j = 1
while $j < $count
  if dots_of[1][$j] > dots_of[1][$best]
    set $best = $j
  end
  set $j = $j + 1
end
answer best_token $t + $best * $step
answer probe dots_of[1][$best]

# The next call is that of heads 2 and 3. Here every key shall be probed: block 1 is
# tokens 64 to 127, 32 at a time.
delete
stop-at probe
continue
set var n_probe = block_tokens
break kvlab::TileReader::Dots if t == 64 || t == 96
continue
finish
set $hidden = t
set $most = dots_of[0][0]
set $j = 1
while $j < 32
  if dots_of[0][$j] > $most
    set $hidden = t + $j
    set $most = dots_of[0][$j]
  end
  set $j = $j + 1
end
continue
finish
set $j = 0
while $j < 32
  if dots_of[0][$j] > $most
    set $hidden = t + $j
    set $most = dots_of[0][$j]
  end
  set $j = $j + 1
end
answer hidden_token $hidden
kill
