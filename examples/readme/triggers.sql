-- Rows of your tables enqueue jobs. One function for one table, then one for all of them.

create table my_table (id int primary key);
create table user_emails (id int primary key, verified boolean not null default false);
create table users (id int primary key, name text);
create table pdfs (id int primary key, title text);

create function my_table_created() returns trigger language plpgsql as $$
begin
  perform stowhand.add_job('my_task', json_build_object('id', new.id));
  return new;
end $$;

create trigger my_table_created after insert on my_table for each row execute function my_table_created();

create function trigger_job() returns trigger language plpgsql as $$
begin
  perform stowhand.add_job(tg_argv[0], json_build_object(
    'schema', tg_table_schema, 'table', tg_table_name, 'op', tg_op,
    'id', case when tg_op = 'DELETE' then old.id else new.id end));
  return new;
end $$;

create trigger send_verification_email after insert on user_emails
  for each row when (new.verified is false) execute function trigger_job('send_verification_email');
create trigger user_changed after insert or update or delete on users
  for each row execute function trigger_job('user_changed');
create trigger generate_pdf after insert on pdfs
  for each row execute function trigger_job('generate_pdf');
create trigger generate_pdf_update after update on pdfs
  for each row when (new.title is distinct from old.title) execute function trigger_job('generate_pdf');
