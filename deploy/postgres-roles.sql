-- The database roles of a deployment: made when they are missing, given the passwords of the secrets each time, so that
-- running it again rotates them. Run as a superuser of the server, in the deployment's database:
--   psql --set secrets=/run/secrets --file postgres-roles.sql
-- Rights in it: `soong migrate --grant-worker … --grant-orchestrator … --grant-client …`, as soong_owner.
\set ON_ERROR_STOP on
\set QUIET on
\set owner_file :secrets/postgres_password_owner
\set orchestrator_file :secrets/postgres_password_orchestrator
\set worker_file :secrets/postgres_password_worker
\set client_file :secrets/postgres_password_client
\set owner_password `cat :'owner_file'`
\set orchestrator_password `cat :'orchestrator_file'`
\set worker_password `cat :'worker_file'`
\set client_password `cat :'client_file'`
-- An empty password would let nobody in, and say so nowhere.
SELECT 1 / (length(:'owner_password') > 15 AND length(:'orchestrator_password') > 15
            AND length(:'worker_password') > 15 AND length(:'client_password') > 15)::int AS passwords_were_read \gset

SELECT format('CREATE ROLE %I', role)
FROM (VALUES ('soong_owner'), ('soong_orchestrator'), ('soong_worker'), ('soong_client')) AS wanted(role)
WHERE role NOT IN (SELECT rolname FROM pg_roles) \gexec

ALTER ROLE soong_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'owner_password';
ALTER ROLE soong_orchestrator
    LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'orchestrator_password';
ALTER ROLE soong_worker
    LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'worker_password';
ALTER ROLE soong_client LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'client_password';

-- The owner makes and changes the tables, and runs nothing else. Nobody in between may make any.
SELECT format('ALTER DATABASE %I OWNER TO soong_owner', current_database()) \gexec
SELECT format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()) \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO soong_owner, soong_orchestrator, soong_worker, soong_client', current_database()) \gexec
ALTER SCHEMA public OWNER TO soong_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC;

-- All workers share a role, and a role may end the statements and connections of its own and store large objects that no
-- table names. None of it is used.
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure)
FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
  AND proname IN ('pg_terminate_backend', 'pg_cancel_backend', 'lo_create', 'lo_creat', 'lo_from_bytea') \gexec

-- Tables of a deployment that had one role for everything.
SELECT format('ALTER TABLE %I.%I OWNER TO soong_owner', schemaname, tablename)
FROM pg_tables WHERE schemaname = 'public' AND tableowner <> 'soong_owner' \gexec
