-- What the catalog says about a user's table and view. Reads pg_catalog alone: no lock on either, no row of theirs.

-- name: server
select pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_setting('default_transaction_read_only') = 'on',
       current_user::text,
       pg_catalog.current_setting('search_path')

-- name: relation
select c.oid::int8,
       n.nspname::text,
       c.relname::text,
       c.relkind::text,
       c.relispartition,
       c.relpersistence::text,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.row_security_active(c.oid),
       (select pg_catalog.array_agg(a.attname::text)
        from pg_catalog.pg_inherits i
        join pg_catalog.pg_partitioned_table p on p.partrelid in (i.inhparent, c.oid)
        cross join pg_catalog.unnest(p.partattrs) as key(attnum)
        join pg_catalog.pg_attribute a on a.attrelid = p.partrelid and a.attnum = key.attnum
        where i.inhrelid = c.oid and c.relispartition),
       (select pg_catalog.array_agg(a.attname::text)
        from pg_catalog.pg_partitioned_table p
        cross join pg_catalog.unnest(p.partattrs) as key(attnum)
        join pg_catalog.pg_attribute a on a.attrelid = p.partrelid and a.attnum = key.attnum
        where p.partrelid = c.oid),
       case when c.relkind in ('r', 'm') then pg_catalog.pg_relation_size(c.oid)
            when c.relkind = 'p' then (select coalesce(sum(pg_catalog.pg_relation_size(t.relid)), 0)::int8
                                       from pg_catalog.pg_partition_tree(c.oid) t where t.isleaf)
            else 0 end / 8192,
       (select case when pg_catalog.bool_and(l.relkind = 'r')
                    then pg_catalog.array_agg(array[m.nspname::text, l.relname::text] order by l.oid) end
        from pg_catalog.pg_partition_tree(case when c.relkind = 'p' then c.oid end) t
        join pg_catalog.pg_class l on l.oid = t.relid
        join pg_catalog.pg_namespace m on m.oid = l.relnamespace
        where t.level = 1),
       (select pg_catalog.array_agg(r.rulename::text)
        from pg_catalog.pg_rewrite r where r.ev_class = c.oid and r.ev_type = '2' and r.rulename <> '_RETURN')
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relname = %s
  and c.relkind in ('r', 'p', 'v', 'm', 'f')
  and case when %s::text is null then pg_catalog.pg_table_is_visible(c.oid) else n.nspname = %s end

-- name: relations_around
-- Names that may have been meant. A catalog, or a temporary table of another session, is no job table.
select n.nspname::text, c.relname::text, c.relkind::text
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
  and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
order by 1, 2
limit 5000

-- name: search_path
-- Empty: what the catalog says is spelled with its schema.
select pg_catalog.set_config('search_path', %s, true)

-- name: columns
with recursive typed as (
  select a.attnum, a.atttypid as type, a.atttypmod as mod, a.attnotnull as filled, null::oid as domain, 0 as depth
  from pg_catalog.pg_attribute a
  where a.attrelid = %s::int8::oid and a.attnum > 0 and not a.attisdropped
  union all
  select t.attnum, y.typbasetype, case when t.mod = -1 then y.typtypmod else t.mod end, t.filled or y.typnotnull,
         coalesce(t.domain, y.oid), t.depth + 1
  from typed t
  join pg_catalog.pg_type y on y.oid = t.type and y.typtype = 'd'
),
based as (
  select distinct on (attnum) * from typed order by attnum, depth desc
)
select a.attname::text,
       pg_catalog.format_type(b.type, b.mod),
       b.domain::pg_catalog.regtype::text,
       b.filled,
       a.attnotnull,
       a.attgenerated::text,
       a.attidentity::text,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid),
       (select pg_catalog.array_agg(e.enumlabel::text order by e.enumsortorder)
        from pg_catalog.pg_enum e where e.enumtypid = b.type),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'UPDATE'),
       (select pg_catalog.array_agg(distinct w.ev_class::int8)
        from pg_catalog.pg_depend u
        join pg_catalog.pg_rewrite w on u.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass and w.oid = u.objid
        where u.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass and u.refobjid = a.attrelid
          and u.refobjsubid = a.attnum and w.ev_class <> a.attrelid)
from based b
join pg_catalog.pg_attribute a on a.attrelid = %s::int8::oid and a.attnum = b.attnum
left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
order by a.attnum

-- name: distinct
-- Of an ANALYZE, if there was one: -1 says that each value was met once.
select s.n_distinct::float8 from pg_catalog.pg_stats s
where s.schemaname = %s and s.tablename = %s and s.attname = %s
order by s.inherited desc
limit 1

-- name: indexes
select x.relname::text,
       i.indisunique,
       i.indisprimary,
       i.indisvalid and i.indisready,
       pg_catalog.pg_get_expr(i.indpred, i.indrelid),
       (select pg_catalog.array_agg(
                 coalesce(a.attname::text, pg_catalog.pg_get_indexdef(i.indexrelid, key.at::int4, true)) order by key.at)
        from pg_catalog.unnest(i.indkey) with ordinality as key(attnum, at)
        left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = key.attnum
        where key.at <= i.indnkeyatts)
from pg_catalog.pg_index i
join pg_catalog.pg_class x on x.oid = i.indexrelid
where i.indrelid = %s::int8::oid

-- name: rules
-- CHECKs of the table, and of the domains of its columns (those name their domain).
select k.conname::text,
       coalesce(pg_catalog.pg_get_expr(k.conbin, k.conrelid),
                pg_catalog.substring(pg_catalog.pg_get_constraintdef(k.oid), '^CHECK \((.*)\)( NOT VALID)?$')),
       (select pg_catalog.array_agg(a.attname::text)
        from pg_catalog.pg_attribute a where a.attrelid = k.conrelid and a.attnum = any (k.conkey)),
       case when k.contypid <> 0 then k.contypid::pg_catalog.regtype::text end
from pg_catalog.pg_constraint k
where k.contype = 'c'
  and (k.conrelid = %s::int8::oid
       or k.contypid in (select a.atttypid from pg_catalog.pg_attribute a
                         where a.attrelid = %s::int8::oid and not a.attisdropped and k.contypid <> 0))

-- name: triggered
-- Is anything of the user's run after an INSERT?
select exists (select from pg_catalog.pg_trigger t
               where t.tgrelid = %s::int8::oid and not t.tgisinternal and t.tgenabled <> 'D' and t.tgtype & 4 = 4)

-- name: heartbeat_triggers
-- What is run for a row that a heartbeat updates (the second parameter: that column), with its text and its arguments.
-- Where it says WHEN, the condition is part of what is read: the state is mentioned there if it is asked for. Not by
-- pg_get_expr, which fails where the condition names both NEW and OLD.
select t.tgname::text,
       p.prosrc,
       coalesce(pg_catalog.substring(pg_catalog.pg_get_triggerdef(t.oid), 'WHEN \((.*)\) EXECUTE'), ''),
       pg_catalog.string_to_array(pg_catalog.encode(t.tgargs, 'escape'), '\000')
from pg_catalog.pg_trigger t
join pg_catalog.pg_proc p on p.oid = t.tgfoid
where t.tgrelid = %s::int8::oid and not t.tgisinternal and t.tgenabled not in ('D', 'R')
  and t.tgtype & 1 = 1 and t.tgtype & 16 = 16
  and (pg_catalog.cardinality(t.tgattr::int2[]) = 0
       or exists (select from pg_catalog.pg_attribute a
                  where a.attrelid = t.tgrelid and a.attname = %s and a.attnum = any (t.tgattr::int2[])))
order by 1

-- name: references
-- Foreign keys of one column: what another table allows there.
select a.attname::text, pg_catalog.format('%%I.%%I', n.nspname, f.relname), b.attname::text
from pg_catalog.pg_constraint k
join pg_catalog.pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
join pg_catalog.pg_class f on f.oid = k.confrelid
join pg_catalog.pg_namespace n on n.oid = f.relnamespace
join pg_catalog.pg_attribute b on b.attrelid = k.confrelid and b.attnum = k.confkey[1]
where k.contype = 'f' and k.conrelid = %s::int8::oid and pg_catalog.cardinality(k.conkey) = 1

-- name: view
-- What is needed to make a view anew: for a column's type cannot change while a view shows it.
select c.oid::int8,
       pg_catalog.format('%%I.%%I', n.nspname, c.relname),
       c.relkind::text,
       pg_catalog.pg_get_viewdef(c.oid),
       c.reloptions::text[],
       pg_catalog.pg_get_userbyid(c.relowner)::text,
       (select pg_catalog.array_agg(pg_catalog.format('GRANT %%s ON %%I.%%I TO %%s%%s;', g.privilege_type,
                 n.nspname, c.relname,
                 case when g.grantee = 0 then 'PUBLIC' else g.grantee::pg_catalog.regrole::text end,
                 case when g.is_grantable then ' WITH GRANT OPTION' else '' end) order by g.grantee, g.privilege_type)
        from pg_catalog.aclexplode(c.relacl) g where g.grantee <> c.relowner),
       exists (select from pg_catalog.pg_depend u
               where u.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass and u.refobjid = c.oid
                 and u.deptype = 'n')
         or exists (select from pg_catalog.pg_trigger t where t.tgrelid = c.oid)
         or exists (select from pg_catalog.pg_rewrite r where r.ev_class = c.oid and r.rulename <> '_RETURN')
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = any (%s::int8[]::oid[])
