-- The properties of a user's table and view. Only pg_catalog is read, so no lock is taken and no row is read.

-- name: server
select current_user::text, pg_catalog.current_setting('search_path')

-- name: relation
select c.oid::int8,
       n.nspname::text,
       case c.relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'v' then 'view'
         when 'm' then 'materialised view' else 'foreign table' end,
       pg_catalog.has_any_column_privilege(c.oid, 'SELECT') and pg_catalog.has_any_column_privilege(c.oid, 'UPDATE'),
       -- Columns by which it, or the table of which it is a partition, is partitioned.
       (select pg_catalog.array_agg(a.attname::text)
        from pg_catalog.pg_partitioned_table p
        cross join pg_catalog.unnest(p.partattrs) as key(attnum)
        join pg_catalog.pg_attribute a on a.attrelid = p.partrelid and a.attnum = key.attnum
        where p.partrelid = c.oid
          or p.partrelid in (select i.inhparent from pg_catalog.pg_inherits i where i.inhrelid = c.oid))
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relname = %s
  and c.relkind in ('r', 'p', 'v', 'm', 'f')
  and case when %s::text is null then pg_catalog.pg_table_is_visible(c.oid) else n.nspname = %s end

-- name: search_path
-- An empty search path makes the catalog qualify every name.
select pg_catalog.set_config('search_path', %s, true)

-- name: columns
with recursive typed as (
  select a.attnum, a.atttypid as type, a.atttypmod as mod, a.attnotnull as filled, 0 as depth
  from pg_catalog.pg_attribute a
  where a.attrelid = %s::int8::oid and a.attnum > 0 and not a.attisdropped
  union all
  select t.attnum, y.typbasetype, case when t.mod = -1 then y.typtypmod else t.mod end, t.filled or y.typnotnull,
         t.depth + 1
  from typed t
  join pg_catalog.pg_type y on y.oid = t.type and y.typtype = 'd'
),
based as (
  select distinct on (attnum) * from typed order by attnum, depth desc
)
select a.attname::text,
       pg_catalog.format_type(b.type, b.mod),
       b.filled,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid),
       a.attgenerated <> '' or a.attidentity = 'a',
       (select pg_catalog.array_agg(e.enumlabel::text order by e.enumsortorder)
        from pg_catalog.pg_enum e where e.enumtypid = b.type)
from based b
join pg_catalog.pg_attribute a on a.attrelid = %s::int8::oid and a.attnum = b.attnum
left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
order by a.attnum

-- name: indexes
select x.relname::text,
       i.indisunique,
       (select pg_catalog.array_agg(a.attname::text order by key.at)
        from pg_catalog.unnest(i.indkey) with ordinality as key(attnum, at)
        left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = key.attnum
        where key.at <= i.indnkeyatts),
       coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), '')
from pg_catalog.pg_index i
join pg_catalog.pg_class x on x.oid = i.indexrelid
where i.indrelid = %s::int8::oid and i.indisvalid and i.indisready

-- name: rules
select k.conname::text,
       pg_catalog.pg_get_expr(k.conbin, k.conrelid),
       (select pg_catalog.array_agg(a.attname::text)
        from pg_catalog.pg_attribute a where a.attrelid = k.conrelid and a.attnum = any (k.conkey))
from pg_catalog.pg_constraint k
where k.contype = 'c' and k.conrelid = %s::int8::oid

-- name: triggers
-- Each trigger with its definition, whether it runs for an INSERT, and whether it runs for each row that a heartbeat
-- updates (the first parameter is that column). pg_get_expr fails for a WHEN that names both NEW and OLD.
select t.tgname::text,
       pg_catalog.pg_get_triggerdef(t.oid),
       t.tgtype & 4 = 4,
       t.tgtype & 17 = 17
         and (pg_catalog.cardinality(t.tgattr::int2[]) = 0
              or exists (select from pg_catalog.pg_attribute a
                         where a.attrelid = t.tgrelid and a.attname = %s and a.attnum = any (t.tgattr::int2[])))
from pg_catalog.pg_trigger t
where t.tgrelid = %s::int8::oid and not t.tgisinternal and t.tgenabled not in ('D', 'R')
order by 1
