# The first call of two_pass: one layer, one KV head, two query heads.
stop-at maximum
run
delete
set $row = kv.head_dim + 4
answer stored_kept 4 * input.group * n
python
rows = {"Scores": 0, "AddValues": 0}


class Count(gdb.Breakpoint):
    def stop(self):
        rows[self.function] += int(gdb.selected_frame().read_var("count"))
        return False


for function in rows:
    Count("kvlab::TileReader::" + function).function = function
end
# Both passes are done when the next call begins, that of the other KV head.
break kvlab::TwoPass::Attend
continue
python
gdb.set_convenience_variable("rows", sum(rows.values()))
rows.update(Scores=0, AddValues=0)
end
answer stored_bytes $rows * $row

# This call is made to rescan.
set $n = input.kv.tokens
set var this->rescan_ = true
continue
python
gdb.set_convenience_variable("rows", sum(rows.values()))
gdb.set_convenience_variable("keys", rows["Scores"])
end
answer rescan_bytes $rows * $row
expect $keys == 2 * $n
answer twice "rescan"

# The single pass: another program with the same arguments.
delete
kill
python
gdb.execute("file " + os.environ["KVLAB_BIN"] + "/day09_q8_single_pass")
end
stop-at score
run
set $head = input.first_head
set $rows = 0
while input.first_head == $head
  set $rows = $rows + tokens
  continue
end
answer single_bytes 2 * $rows * $row
answer single_kept input.group * sizeof(heads._M_impl._M_start[0].tile)
