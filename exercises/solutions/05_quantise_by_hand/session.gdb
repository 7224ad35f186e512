# The row before it is quantised: k holds count tokens of 2 KV heads. print keeps
# it as $1.
break kvlab::KvCache::Append if layer == 1
run
print *(k._M_ptr + 100 * 2 * 128)@128
delete

# Prediction: the largest magnitude, the scale.
set $i = 0
set $largest = 0
while $i < 128
  set $a = $1[$i] < 0 ? -$1[$i] : $1[$i]
  set $m = $1[$largest] < 0 ? -$1[$largest] : $1[$largest]
  if $a > $m
    set $largest = $i
  end
  set $i = $i + 1
end
answer largest $largest
set $m = $1[$largest] < 0 ? -$1[$largest] : $1[$largest]
answer scale $m / 127

# The row in the cache.
stop-at score if input.layer == 1
continue
q8 K 100
expect kv.key_scales[100] == $m / 127
set $s = kv.key_scales[100]
print/d *(kv.key_codes + 100 * kv.stride)@128
answer codes [$2[0], $2[1], $2[2], $2[3], $2[4], $2[5], $2[6], $2[7]]
set $i = 0
set $cut_off = 0
set $worst = 0
set $worst_error = 0.0
while $i < 128
  if (int)($1[$i] / $s) != $2[$i]
    set $cut_off = $cut_off + 1
  end
  set $e = $1[$i] / $s - $2[$i]
  if $e < 0
    set $e = -$e
  end
  if $e > $worst_error
    set $worst = $i
    set $worst_error = $e
  end
  set $i = $i + 1
end
answer cut_off $cut_off
answer worst $worst
answer worst_error $worst_error
expect $worst_error <= 0.5
